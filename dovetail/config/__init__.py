"""Typed configs: the ground on which every part stands. Pure Python; imports no JAX."""

from dovetail.config.base import Config, ConfigOf, T_co, field_values
from dovetail.config.difference import Difference, diff
from dovetail.config.discovery import import_submodules
from dovetail.config.errors import ConfigError, did_you_mean
from dovetail.config.explain import Explanation, explain
from dovetail.config.fields import apart, incidental, wraps
from dovetail.config.functions import config_for
from dovetail.config.identity import identity
from dovetail.config.jsonable import json_values
from dovetail.config.modifiers import apply_modifier, modifier, modifiers
from dovetail.config.overrides import apply_overrides
from dovetail.config.part import Part
from dovetail.config.provenance import Origin, through
from dovetail.config.reading import from_text
from dovetail.config.registry import import_package, imported_packages, register_function
from dovetail.config.replace import Report, collect_reports, replace
from dovetail.config.required import REQUIRED
from dovetail.config.text import all_values, to_text
from dovetail.config.traverse import find, select, value_at, visit
from dovetail.config.values import same

__all__ = [
    "REQUIRED",
    "Config",
    "ConfigError",
    "ConfigOf",
    "Difference",
    "Explanation",
    "Origin",
    "Part",
    "Report",
    "T_co",
    "all_values",
    "apart",
    "apply_modifier",
    "apply_overrides",
    "collect_reports",
    "config_for",
    "did_you_mean",
    "diff",
    "explain",
    "field_values",
    "find",
    "from_text",
    "identity",
    "import_package",
    "import_submodules",
    "imported_packages",
    "incidental",
    "json_values",
    "modifier",
    "modifiers",
    "register_function",
    "replace",
    "same",
    "select",
    "through",
    "to_text",
    "value_at",
    "visit",
    "wraps",
]
