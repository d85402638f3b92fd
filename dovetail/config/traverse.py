"""Walking and rewriting a tree of configs: visit, find, select, replace, and values by path.

`replace` is how a feature reaches every model: the tree is searched by what its configs build, so
a feature needs to know no model, and no model needs to know the feature.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from dovetail.config.base import Config
from dovetail.config.errors import ConfigError, did_you_mean
from dovetail.config.fields import field_hints
from dovetail.config.provenance import caller
from dovetail.config.typecheck import check, describe_value, satisfies
from dovetail.config.values import (
    CONTAINERS,
    REQUIRED,
    configs_inside,
    is_config_class,
    items_of,
    join,
    rebuild,
)

C = TypeVar("C", bound=Config[Any])
New = Config[Any] | Callable[[Any], Config[Any]]


def visit(config: Config[Any], *, opaque: bool = True) -> Iterator[tuple[str, Config[Any]]]:
    """Yields every config with its path, parents first; `opaque` includes opaque() children."""
    config._normalize()
    yield from _visit(config, config.tree_path(), opaque)


def _visit(config: Config[Any], path: str, opaque: bool) -> Iterator[tuple[str, Config[Any]]]:
    yield path, config
    fields = config.fields()
    for name, value in config._node.values.items():
        if opaque or not fields[name].opaque:
            for key, child in configs_inside(value, name):
                yield from _visit(child, join(path, key), opaque)


def find(config: Config[Any], kind: Any) -> str | None:
    """Returns the path of the first config that builds a `kind`, or None."""
    check_kind(kind, "find")
    reached = visit(config, opaque=False)
    return next((path for path, found in reached if matches(found, kind)), None)


def matches(config: Config[Any], kind: Any) -> bool:
    """Says whether a config builds a kind, calls it, or is an instance of it."""
    if not isinstance(kind, type):
        return getattr(type(config), "_function", None) is kind
    if issubclass(kind, Config):
        return isinstance(config, kind)
    built = type(config).builds()
    return built is not None and satisfies(built, kind)


def check_kind(kind: Any, what: str) -> None:
    """Raises if a kind is not a class or function."""
    if isinstance(kind, Config):
        raise ConfigError(
            f"{what}: expected a class, got {describe_value(kind)}. Leave out .Config()."
        )
    if not callable(kind):
        raise ConfigError(f"{what}: expected a class or function, got {describe_value(kind)}.")


class Selection(Generic[C]):
    """All configs of a kind in a copy of a tree."""

    def __init__(self, root: C, kind: Any) -> None:
        check_kind(kind, "select")
        self._root = root.clone()
        self._kind = kind
        reached = visit(self._root, opaque=False)
        self.found = {path: found for path, found in reached if matches(found, kind)}

    def set(self, /, **values: Any) -> C:
        """Returns the tree with fields set on every selected config."""
        if not self.found:
            raise ConfigError(nothing_found(self._root, self._kind))
        for config in self.found.values():
            config.set(**values)
        return self._root.clone()

    def __iter__(self) -> Iterator[Config[Any]]:
        return iter(self.found.values())

    def __len__(self) -> int:
        return len(self.found)


def select(config: C, kind: Any) -> Selection[C]:
    """Selects every config that builds a `kind`; `.set(...)` returns an edited copy of the tree."""
    return Selection(config, kind)


def kind_name(kind: Any) -> str:
    """Returns the name of a kind for messages."""
    if isinstance(kind, type) and issubclass(kind, Config):
        return kind.__qualname__.rpartition("<locals>.")[2]
    return getattr(kind, "__name__", str(kind))


def nothing_found(config: Config[Any], kind: Any) -> str:
    """Returns the message for a kind that does not occur in a tree."""
    name = kind_name(kind)
    present = {type(found).display_name() for _, found in visit(config)}
    return f"No config in this tree builds a {name}. {did_you_mean(name, present)}"


def descend(config: Config[Any], path: str) -> tuple[Any, Any]:
    """Returns the holder of the last piece of a path, and the key of that piece in it."""
    *upper, last = path.split(".")
    holder: Any = config
    walked = ""
    for piece in upper:
        holder = _items(holder, walked)[_key(holder, piece, walked)]
        walked = join(walked, piece)
    return holder, _key(holder, last, walked, assigning=True)


def value_at(config: Config[Any], path: str) -> Any:
    """Returns the value at a path."""
    holder, key = descend(config, path)
    if isinstance(holder, dict) and key not in holder:
        raise _no_such_key(holder, path)
    return _items(holder, path)[key]


def _items(holder: Any, walked: str) -> Any:
    if isinstance(holder, Config):
        return holder._node.values
    if isinstance(holder, dict | list | tuple):
        return holder
    raise ConfigError(
        f"{walked} is {describe_value(holder)}, which has no fields. "
        "Set it to a component (by name) first."
    )


def _key(holder: Any, piece: str, walked: str, assigning: bool = False) -> Any:
    """Returns the key in a holder that a piece of a path stands for."""
    items, where = _items(holder, walked), join(walked, piece)
    if isinstance(holder, Config):
        if piece not in items:
            raise holder._unknown(piece)
        return piece
    if isinstance(holder, dict):
        key = next((key for key in items if str(key) == piece), piece)
        if key not in items and not assigning:
            raise _no_such_key(items, where)
        return key
    if not (piece.isascii() and piece.isdecimal() and int(piece) < len(items)):
        kind = type(holder).__name__
        wanted = f"an index from 0 to {len(items) - 1}" if items else "nothing, since it is empty"
        raise ConfigError(f"{where}: {walked} is a {kind} of {len(items)}: expected {wanted}.")
    return int(piece)


def _no_such_key(holder: dict[Any, Any], where: str) -> ConfigError:
    name = where.rpartition(".")[2]
    return ConfigError(f"{where}: there is no key {name!r}. {did_you_mean(name, map(str, holder))}")


@dataclass
class Report:
    """What one call of replace() did: the paths it replaced, and the set fields it dropped."""

    kind: str
    replaced: list[str] = field(default_factory=list)
    dropped: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        text = f"replaced {len(self.replaced)} {self.kind}"
        if self.dropped:
            text += (
                f"; dropped, because the new config has no such fields: {', '.join(self.dropped)}"
            )
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

    A wrapper stays when what it wraps is replaced: where a config builds an `old` and its `wraps()`
    field holds another `old`, the inner one is replaced. So a modifier that wraps and one that
    replaces may come in either order. If `new` is itself a wrapper, it wraps the outer one; a
    function receives the outer one.

    Args:
        config: the tree; it is not changed.
        old: a component, an interface, a config class, or a function that a config calls.
        new: a config, or a function from the old config to the new one. A config takes over the
            fields that are set explicitly on the old one, that it does not set itself, and that
            both declare with compatible types. Its `wraps()` field receives the old config.
        strict: whether it is an error to drop a field that is set on the old config.
        outside: kinds whose configs are left unchanged, with everything inside them.

    Raises:
        ConfigError: if nothing was replaced, or under `strict` if a set field was dropped.
    """
    for kind in (old, *outside):
        check_kind(kind, "replace")
    _check_new(new)
    report = Report(kind_name(old))
    tree = config.clone()  # paths start here, and `new` may change it
    replaced: Any = _replaced(tree, old, new, report, outside)
    if not report.replaced:
        raise ConfigError(nothing_found(tree, old))
    if strict and report.dropped:
        raise ConfigError(
            f"replace({report.kind}): the new config has no such fields as these, which are set: "
            f"{', '.join(report.dropped)}. Leave them unset, or replace with strict=False."
        )
    reports = _reports.get()
    if reports is not None:
        reports.append(report)
    return replaced


def _check_new(new: Any) -> None:
    name = getattr(new, "__qualname__", type(new).__qualname__)
    if is_config_class(getattr(new, "Config", None)):
        got = "the class" if isinstance(new, type) else "an instance of"
        raise ConfigError(f"replace: expected a config, got {got} {name}; use {name}.Config(...).")
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
        if matches(value, old) and not _stays(value, old, new):
            report.replaced.append(value.tree_path())
            return _successor(value, new, report)
        fields = value.fields()
        for name, inner in list(value._node.values.items()):
            if fields[name].opaque:
                continue
            count = len(report.replaced)
            changed = _replaced(inner, old, new, report, outside)
            if changed is not inner and len(report.replaced) > count:
                origin = None if isinstance(inner, Config) else value.get_origin(name)
                value.set_value(name, changed, origin or caller())
        return value
    if type(value) in CONTAINERS:
        items = [_replaced(item, old, new, report, outside) for _, item in items_of(value)]
        return rebuild(value, items)
    return value


def _stays(config: Config[Any], old: Any, new: New) -> bool:
    """Says whether a config is a wrapper whose wrapped config is replaced instead."""
    if not isinstance(new, Config) or _open_wraps(new):
        return False
    wrapped = (config._node.values[f.name] for f in config.fields().values() if f.wraps)
    return any(isinstance(value, Config) and matches(value, old) for value in wrapped)


def _open_wraps(new: Config[Any]) -> str:
    """Returns the first `wraps()` field that is not set, which receives the old config; or ""."""
    fields = new.fields().values()
    return next((f.name for f in fields if f.wraps and not new.is_set(f.name)), "")


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
    result._node.copied_from = old.tree_path()
    receiver = _open_wraps(new)
    if receiver:
        result.set_value(receiver, old, caller())
    for name, value in old.explicit().items():
        if value is REQUIRED or name in (receiver, *new.explicit()):
            continue  # nothing to carry over, or set by the new config itself
        if _fits(result, name, value):
            result.set_value(name, value, old.get_origin(name) or caller())
        elif not receiver:
            report.dropped.append(join(old.tree_path(), name))
    return result


def _fits(config: Config[Any], name: str, value: Any) -> bool:
    if name not in config.fields():
        return False
    try:
        check(value, field_hints(type(config))[name], name)
    except ConfigError:
        return False
    return True
