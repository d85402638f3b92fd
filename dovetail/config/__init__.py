"""Typed configs, from which every component is built. Pure Python; imports no JAX."""

from dovetail.config.base import Component, Config, ConfigOf, T_co
from dovetail.config.diff import (
    Difference,
    derived_paths,
    diff,
    explain,
    identity,
    interchangeable_with,
    json_origins,
)
from dovetail.config.errors import (
    ConfigError,
    Error,
    RunError,
    StorageError,
    did_you_mean,
    nearest,
)
from dovetail.config.fields import incidental, opaque, wraps
from dovetail.config.functions import config_for
from dovetail.config.old_names import is_old_field
from dovetail.config.overrides import (
    apply_modifier,
    apply_overrides,
    modifier,
    modifiers,
    value_choices,
)
from dovetail.config.packages import (
    failed_user_line,
    import_package,
    import_packages,
    may_pass,
    missing_entry_points,
    missing_imports,
    own_modules,
)
from dovetail.config.provenance import through
from dovetail.config.registry import (
    Registry,
    component_name,
    import_submodules,
    imported_packages,
    register_function,
)
from dovetail.config.text import all_values, from_text, json_values, to_text
from dovetail.config.traverse import collect_reports, find, replace, select, value_at, visit
from dovetail.config.values import REQUIRED, same

__all__ = [
    "REQUIRED",
    "Component",
    "Config",
    "ConfigError",
    "ConfigOf",
    "Difference",
    "Error",
    "Registry",
    "RunError",
    "StorageError",
    "T_co",
    "all_values",
    "apply_modifier",
    "apply_overrides",
    "collect_reports",
    "component_name",
    "config_for",
    "derived_paths",
    "did_you_mean",
    "diff",
    "explain",
    "failed_user_line",
    "find",
    "from_text",
    "identity",
    "import_package",
    "import_packages",
    "import_submodules",
    "imported_packages",
    "incidental",
    "interchangeable_with",
    "is_old_field",
    "json_origins",
    "json_values",
    "may_pass",
    "missing_entry_points",
    "missing_imports",
    "modifier",
    "modifiers",
    "nearest",
    "opaque",
    "own_modules",
    "register_function",
    "replace",
    "same",
    "select",
    "through",
    "to_text",
    "value_at",
    "value_choices",
    "visit",
    "wraps",
]
