"""Typed configs: the ground on which every part stands. Pure Python; imports no JAX."""

from dovetail.config.base import Config, ConfigOf, same
from dovetail.config.difference import Difference, diff
from dovetail.config.errors import ConfigError, did_you_mean
from dovetail.config.fields import wraps
from dovetail.config.functions import config_for
from dovetail.config.modifiers import apply_modifier, modifier, modifiers
from dovetail.config.overrides import apply_overrides
from dovetail.config.part import Part
from dovetail.config.provenance import Origin, through
from dovetail.config.registry import register_function
from dovetail.config.replace import Report, collect_reports, replace
from dovetail.config.required import REQUIRED
from dovetail.config.text import all_values, from_text, to_text
from dovetail.config.traverse import select, value_at, visit

__all__ = [
    "REQUIRED",
    "Config",
    "ConfigError",
    "ConfigOf",
    "Difference",
    "Origin",
    "Part",
    "Report",
    "all_values",
    "apply_modifier",
    "apply_overrides",
    "collect_reports",
    "config_for",
    "did_you_mean",
    "diff",
    "from_text",
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
