"""Hits: the places where a Python file names a feature, by kind."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass

from dovetail.modularity.scan.classes import (
    FunctionNode,
    constructor,
    dotted,
    is_config,
    own_fields,
    parameters,
)
from dovetail.modularity.scan.words import FeatureWords

# The order in which a report shows them, with what each counts.
KINDS = {
    "definitions": "classes and functions with the feature in their name",
    "constructor_parameters": "parameters of __init__, or fields of a class without one",
    "parameters": "parameters of other functions",
    "config_keys": "fields of configs, keys of dicts and config files, command-line options",
    "conditionals": "if, match and conditional expressions whose test names the feature",
    "constructions": "calls of classes with the feature in their name",
    "calls": "calls of functions with the feature in their name",
    "arguments": "keyword arguments passed under the feature's name",
    "imports": "imports of it",
}

# Kinds that wire a feature in; imports and definitions do not.
WIRING = ("constructor_parameters", "config_keys", "conditionals", "constructions", "arguments")


@dataclass(frozen=True, order=True)
class Hit:
    """One place: its kind, file (relative to the root of the scan), line and name."""

    kind: str
    file: str
    line: int
    name: str


# A string that could be a name: a key, a choice, an option. Sentences and paths are not.
_NAME_STRING = re.compile(r"-{0,2}[A-Za-z_][A-Za-z0-9_-]{0,60}")

# `RotaryEmbedding`, `_Rotary` and `Ernie4_5_Experts`, and neither `ROPE_TABLE` nor `T_rows`.
_CLASS_NAME = re.compile(r"_*[A-Z](?![A-Z0-9]*(_|$))|_*[A-Z]$")
_BUILDER = re.compile(r"(build|create|default|default_config|init|instantiate|make|from_\w+)$")

Place = tuple[str, int, str]  # the kind, the line and the name


class FileNames:
    """Every name of a file with its place, collected in one walk for all features."""

    def __init__(self, tree: ast.Module, file: str) -> None:
        self._file = file
        self._identifiers = set(_identifiers(tree))
        self._places: set[Place] = set()
        self._tests: set[tuple[int, tuple[str, ...]]] = set()  # of conditionals: line and names
        constructors: set[FunctionNode] = set()
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef):
                self._places.update(_class_places(node))
                init = constructor(node)
                constructors.update([init] if init else [])
            self._places.update(_places(node, constructors))
            self._tests.update(_tests(node))

    def hits(self, words: FeatureWords) -> list[Hit]:
        """Returns every place where the feature is named, sorted by kind and line.

        A conditional is listed by the first name in its test that matches.
        """
        found = {place for place in self._places if words.match(place[2])}
        for line, names in self._tests:
            named = [name for name in names if words.match(name)]
            if named:
                found.add(("conditionals", line, named[0]))
        return sorted(Hit(kind, self._file, line, name) for kind, line, name in found)

    def lines(self, words: FeatureWords) -> set[int]:
        """Returns the lines of code that name the feature in any way, without comments."""
        return {line for name, line in self._identifiers if words.match(name)}


def _class_places(node: ast.ClassDef) -> Iterator[Place]:
    kind = "config_keys" if is_config(node) else "constructor_parameters"
    for name, line in own_fields(node):
        yield kind, line, name
    init = constructor(node)
    for each in parameters(init)[1:] if init else ():
        yield kind, each.lineno, each.arg


def _places(node: ast.AST, constructors: set[FunctionNode]) -> Iterator[Place]:
    """Yields the places that can be recognized from the node alone."""
    if isinstance(node, ast.ClassDef | FunctionNode):
        yield "definitions", node.lineno, node.name
    if isinstance(node, FunctionNode | ast.Lambda) and node not in constructors:
        for each in parameters(node):
            yield "parameters", each.lineno, each.arg
    elif isinstance(node, ast.Call):
        yield from _call_places(node)
    elif isinstance(node, ast.Dict):
        for key in node.keys:
            if key is not None and (text := _name_string(key)):
                yield "config_keys", key.lineno, text
    elif isinstance(node, ast.Import | ast.ImportFrom):
        for alias in node.names:
            yield "imports", alias.lineno, alias.name.rpartition(".")[2]


def _call_places(node: ast.Call) -> Iterator[Place]:
    chain = dotted(node.func).split(".")
    if chain[0] == "self":  # an existing component, whatever its name
        yield "calls", node.lineno, chain[-1]
    elif _CLASS_NAME.match(chain[-1]) or _BUILDER.match(chain[-1]):
        # `Rotary.Config(...)` and `Rotary.default_config()` build one as `Rotary(...)` does.
        for part in chain:
            if _CLASS_NAME.match(part):
                yield "constructions", node.lineno, part
    else:
        yield "calls", node.lineno, chain[-1]
    for keyword in node.keywords:
        yield "arguments", keyword.lineno, keyword.arg or ""
    if chain[-1] == "add_argument":
        for option in node.args:
            if isinstance(option, ast.Constant) and str(option.value).startswith("--"):
                yield "config_keys", option.lineno, str(option.value).lstrip("-")


def _tests(node: ast.AST) -> Iterator[tuple[int, tuple[str, ...]]]:
    """Yields the line of each condition of a node, and the names in it."""
    tests: list[ast.expr | ast.pattern] = []
    if isinstance(node, ast.If | ast.IfExp):
        tests = [node.test]
    elif isinstance(node, ast.Match):
        tests = [node.subject, *(case.pattern for case in node.cases)]
        tests += [case.guard for case in node.cases if case.guard]
    elif isinstance(node, ast.comprehension):
        tests = [*node.ifs]
    for test in tests:
        yield test.lineno, tuple(name for name, _ in _identifiers(test))


def _identifiers(tree: ast.AST) -> Iterator[tuple[str, int]]:
    """Yields every name in a tree with its line, and every string that could be one."""
    for node in ast.walk(tree):
        for attribute in ("id", "attr", "arg", "name"):
            name = getattr(node, attribute, None)
            if isinstance(name, str) and hasattr(node, "lineno"):
                yield name.rpartition(".")[2], node.lineno
        if isinstance(node, ast.ImportFrom) and node.module:
            yield node.module.rpartition(".")[2], node.lineno
        if isinstance(node, ast.Constant) and (text := _name_string(node)):
            yield text, node.lineno


def _name_string(node: ast.expr) -> str | None:
    if not isinstance(node, ast.Constant) or not isinstance(node.value, str):
        return None
    return node.value if _NAME_STRING.fullmatch(node.value) else None
