"""replace(): swap every part of a kind in a tree for another, in one line.

This is how a feature reaches every model: the tree is searched by what its configs build, so the
one who writes the feature needs to know no model, and no model needs to know the feature.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, TypeVar

from dovetail.config.base import Config
from dovetail.config.errors import ConfigError
from dovetail.config.fields import field_hints
from dovetail.config.provenance import here
from dovetail.config.required import REQUIRED
from dovetail.config.traverse import check_kind, kind_name, matches, nothing_found
from dovetail.config.typecheck import check, describe_value
from dovetail.config.values import CONTAINERS, is_config_class, items_of, join, rebuilt

C = TypeVar("C", bound=Config[Any])
New = Config[Any] | Callable[[Any], Config[Any]]


@dataclass
class Report:
    """What one call of replace() did."""

    kind: str
    replaced: list[str] = field(default_factory=list)
    homeless: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        """Says it in one line."""
        text = f"replaced {len(self.replaced)} {self.kind}"
        if self.homeless:
            text += f"; set before, and without a place now: {', '.join(self.homeless)}"
        return text


_reports: ContextVar[list[Report] | None] = ContextVar("replace_reports", default=None)


@contextmanager
def collect_reports() -> Iterator[list[Report]]:
    """Collects the reports of every replace() inside the block, modifiers' too."""
    reports: list[Report] = []
    token = _reports.set(reports)
    try:
        yield reports
    finally:
        _reports.reset(token)


def replace(
    config: C, old: Any, new: New, *, strict: bool = False, outside: tuple[Any, ...] = ()
) -> C:
    """Returns a tree in which every config that builds an `old` is `new`.

    Args:
        config: the tree; it is not changed.
        old: a part, any class, a config class, or a function that a config calls.
        new: a config, or a function from the old config to the new one. Into a config, the fields
            that it does not set itself are carried over from the old one: those that were set
            explicitly there and that both declare with compatible types. Its `wraps()` field
            receives the whole old config.
        strict: whether a set field of the old config that finds no home is an error.
        outside: kinds whose configs, with all that is inside them, are left as they are.

    Raises:
        ConfigError: where nothing was replaced, or a field found no home under `strict`.
    """
    for kind in (old, *outside):
        check_kind(kind, "replace")
    _check_new(new)
    report = Report(kind_name(old))
    tree = config.clone()  # a copy whose paths begin here, and which `new` may do with as it likes
    replaced: Any = _replaced(tree, old, new, report, outside)
    if not report.replaced:
        raise ConfigError(nothing_found(tree, old))
    if strict and report.homeless:
        raise ConfigError(
            f"replace({report.kind}): the new config has no place for these set fields: "
            f"{', '.join(report.homeless)}. Leave them unset, or replace with strict=False."
        )
    reports = _reports.get()
    if reports is not None:
        reports.append(report)
    return replaced


def _check_new(new: Any) -> None:
    name = getattr(new, "__qualname__", "")
    if is_config_class(getattr(new, "Config", None)):
        raise ConfigError(
            f"replace: expected a config, got the class {name}; use {name}.Config(...)."
        )
    if is_config_class(new):
        raise ConfigError(
            f"replace: expected a config, got the class {name}; call it: {name}(...)."
        )
    if not isinstance(new, Config) and not callable(new):
        raise ConfigError(
            f"replace: expected a config, or a function from the old config to the new one, "
            f"got {describe_value(new)}."
        )


def _replaced(value: Any, old: Any, new: New, report: Report, outside: tuple[Any, ...]) -> Any:
    """Rebuilds a value; a replaced config is not searched again."""
    if isinstance(value, Config):
        if any(matches(value, kind) for kind in outside):
            return value
        if matches(value, old):
            report.replaced.append(value.tree_path())
            return _successor(value, new, report)
        fields = value.fields()
        for name, inner in list(value._node.values.items()):
            if fields[name].apart:
                continue
            count = len(report.replaced)
            changed = _replaced(inner, old, new, report, outside)
            if changed is not inner and len(report.replaced) > count:
                origin = None if isinstance(inner, Config) else value.get_origin(name)
                value.set_value(name, changed, origin or here())
        return value
    if type(value) in CONTAINERS:
        items = [_replaced(item, old, new, report, outside) for _, item in items_of(value)]
        return rebuilt(value, items)
    return value


def _successor(old: Config[Any], new: New, report: Report) -> Config[Any]:
    if not isinstance(new, Config):
        result = new(old.clone())
        if not isinstance(result, Config):
            raise ConfigError(
                f"{old.tree_path() or 'replace'}: the replacement function returned "
                f"{describe_value(result)}, not a config."
            )
        return result.clone()
    result = new.clone()
    result._node.place = old.tree_path()
    receiver = _receiver(new)
    if receiver:
        result.set_value(receiver, old, here())
    for name, value in old.explicit().items():
        if value is REQUIRED or name in (receiver, *new.explicit()):
            continue  # there is nothing to carry, or the new config says it itself
        if _fits(result, name, value):
            result.set_value(name, value, old.get_origin(name) or here())
        elif not receiver:
            report.homeless.append(join(old.tree_path(), name))
    return result


def _receiver(new: Config[Any]) -> str:
    """Returns the field that receives the old config: the first that is marked and not set."""
    return next((f.name for f in new.fields().values() if f.wraps and not new.is_set(f.name)), "")


def _fits(config: Config[Any], name: str, value: Any) -> bool:
    if name not in config.fields():
        return False
    try:
        check(value, field_hints(type(config))[name], name)
    except ConfigError:
        return False
    return True
