"""replace(): swap every part of a kind in a tree for another, in one line.

This is how a feature reaches every model: the tree is searched by what its configs build, so the one
who writes the feature needs to know no model, and no model needs to know the feature.
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
from dovetail.config.traverse import matches, nothing_found
from dovetail.config.typecheck import check

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


def replace(config: C, old: Any, new: New, *, strict: bool = False) -> C:
    """Returns a tree in which every config that builds an `old` is `new`.

    Args:
        config: the tree; it is not changed.
        old: a part, any class, a config class, or a function that a config calls.
        new: a config, or a function from the old config to the new one. From a config, the fields that
            it does not set itself are carried over from the old one: those that were set explicitly
            there and that both declare with compatible types. Its `wraps()` field receives the old.
        strict: whether a set field of the old config that finds no home is an error.

    Raises:
        ConfigError: where nothing was replaced, or a field found no home under `strict`.
    """
    report = Report(getattr(old, "__name__", str(old)))
    replaced: Any = _replaced(config, old, new, report)
    if not report.replaced:
        raise ConfigError(nothing_found(config, old))
    if strict and report.homeless:
        raise ConfigError(
            f"replace({report.kind}): these fields were set and the new config has no place for them: "
            f"{', '.join(report.homeless)}. Unset them, or replace with strict=False."
        )
    reports = _reports.get()
    if reports is not None:
        reports.append(report)
    return replaced


def _replaced(value: Any, old: Any, new: New, report: Report) -> Any:
    """Rebuilds a value; a replaced config is not searched again."""
    if isinstance(value, Config):
        if matches(value, old):
            report.replaced.append(value.tree_path())
            return _successor(value, new, report)
        copy = value.clone()
        for name in value.fields():
            inner = value.__dict__[name]
            count = len(report.replaced)
            changed = _replaced(inner, old, new, report)
            if len(report.replaced) > count:
                copy.set_value(name, changed, value.get_origin(name) or here())
        return copy
    if isinstance(value, dict):
        return {key: _replaced(item, old, new, report) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(_replaced(item, old, new, report) for item in value)
    return value


def _successor(old: Config[Any], new: New, report: Report) -> Config[Any]:
    if not isinstance(new, Config):
        result = new(old.clone())
        if not isinstance(result, Config):
            raise ConfigError(f"{old.tree_path()}: the replacement function returned {result!r}, not a config.")
        return result
    result = new.clone()
    wrapped = [field.name for field in result.fields().values() if field.wraps]
    for name in wrapped:
        if name not in new.explicit():
            result.set_value(name, old, here())
    for name, value in old.explicit().items():
        if _fits(result, name, value) and not new.is_set(name) and name not in wrapped:
            result.set_value(name, value, old.get_origin(name) or here())
        elif name not in new.explicit() and not wrapped:
            report.homeless.append(old._locate(name))
    return result


def _fits(config: Config[Any], name: str, value: Any) -> bool:
    if name not in config.fields():
        return False
    try:
        check(value, field_hints(type(config))[name], name)
    except ConfigError:
        return False
    return True
