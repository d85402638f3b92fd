"""A place in the code where a feature is named, and the kinds of such places."""

from __future__ import annotations

from dataclasses import dataclass

# The order in which a report shows them, with what each counts.
KINDS = {
    "definitions": "classes and functions with the feature in their name",
    "constructor_parameters": "parameters of __init__, and fields that stand for them",
    "parameters": "parameters of other functions",
    "config_keys": "fields of configs, keys of dicts and config files, command-line options",
    "conditionals": "if, match and conditional expressions whose test names the feature",
    "constructions": "calls of classes with the feature in their name",
    "calls": "calls of functions with the feature in their name",
    "arguments": "keyword arguments passed under the feature's name",
    "imports": "imports of it",
}

# Kinds by which a file takes part in switching a feature on; importing and defining are not.
WIRING = ("constructor_parameters", "config_keys", "conditionals", "constructions", "arguments")


@dataclass(frozen=True, order=True)
class Hit:
    """One place: the kind, the file (relative to what is scanned), the line and the name there."""

    kind: str
    file: str
    line: int
    name: str
