"""What a field holds, handled by value: compared, copied into a tree, and kept in order.

A value is None, a bool, a number, a string, a function, a config, or a list, tuple or dict of
values. This file knows a config only by its class's fields, so that it stands below `base`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from dovetail.config.errors import ConfigError
from dovetail.config.required import REQUIRED

SCALARS = frozenset((bool, int, float, str, type(None)))
CONTAINERS = (list, tuple, dict)
_KEY = re.compile(r"[\w\-]+")
_NUMBER = re.compile(r"[0-9]{1,15}")


def is_config_class(candidate: Any) -> bool:
    """Says whether a class is a Config."""
    return isinstance(candidate, type) and _is_config_class(candidate)


def is_config(value: Any) -> bool:
    """Says whether a value is a config."""
    return _is_config_class(type(value))


_config_classes: dict[Any, bool] = {}


def _is_config_class(candidate: Any) -> bool:
    """Remembers the answer: it is asked millions of times, of a few hundred classes."""
    known = _config_classes.get(candidate)
    if known is None:
        known = _config_classes[candidate] = hasattr(candidate, "__config_fields__")
    return known


def join(*pieces: str) -> str:
    """Joins the pieces of a path; empty ones leave no dot."""
    return ".".join(piece for piece in pieces if piece)


def items_of(value: Any) -> list[tuple[Any, Any]]:
    """Returns the (key, item) pairs of a list, tuple or dict; nothing for any other value."""
    if isinstance(value, dict):
        return list(value.items())
    return list(enumerate(value)) if isinstance(value, list | tuple) else []


def rebuilt(value: Any, items: list[Any]) -> Any:
    """Returns a container of the kind and keys of `value`, with other items."""
    if isinstance(value, dict):
        return dict(zip(value, items, strict=True))
    return tuple(items) if isinstance(value, tuple) else items


def configs_inside(value: Any, key: str = "") -> Iterator[tuple[str, Any]]:
    """Yields the configs that a value holds, with their keys, through lists, tuples and dicts."""
    if is_config(value):
        yield key, value
    elif isinstance(value, CONTAINERS):
        for name, item in items_of(value):
            yield from configs_inside(item, join(key, str(name)))


def same(left: Any, right: Any) -> bool:
    """Compares two values as text would: 1 is not 1.0 and not True, and nan is nan."""
    if left is right:
        return True
    if left is REQUIRED or right is REQUIRED or type(left) is not type(right):
        return False
    if isinstance(left, float):
        return repr(left) == repr(right)
    if isinstance(left, dict):
        return left.keys() == right.keys() and all(same(left[key], right[key]) for key in left)
    if isinstance(left, list | tuple):
        return len(left) == len(right) and all(map(same, left, right))
    return bool(left == right)


def in_order(name: Any) -> tuple[int, int, str, str]:
    """Sorts keys and path pieces: numbers first, as numbers, then the rest by name."""
    text = str(name)
    if _NUMBER.fullmatch(text):
        return (0, int(text), text, type(name).__name__)
    return (1, 0, text, type(name).__name__)


def path_in_order(path: str) -> list[tuple[int, int, str, str]]:
    """Sorts paths piece by piece, so that a parent always stands before its children."""
    return [in_order(piece) for piece in path.split(".") if piece]


def copied(parent: Any, key: str, value: Any) -> Any:
    """Copies a value into a tree, so that no two places ever share a config or a container.

    Dicts are kept sorted by key: equal configs have equal text, and so must behave alike.
    """
    if is_config(value):
        return value._copy(parent, key)
    if type(value) not in CONTAINERS:
        return value
    if isinstance(value, dict):
        keys = sorted(value, key=in_order)
        return {name: copied(parent, join(key, str(name)), value[name]) for name in keys}
    return rebuilt(value, [copied(parent, join(key, str(i)), v) for i, v in enumerate(value)])


def settled(parent: Any, key: str, held: Any, checked: Any, seen: set[int]) -> Any:
    """Brings a container back to order in which somebody changed things in place.

    `checked` is what `held` should contain. A config that stands here rightly stays; one that
    belongs elsewhere, or stands here twice, becomes a copy. Lists and dicts stay the same objects.
    """
    if is_config(checked):
        if checked._node.parent is not parent or id(checked) in seen:
            return checked._copy(parent, key)
        seen.add(id(checked))
        checked._node.key = key
        return checked
    if type(checked) not in CONTAINERS:
        return checked
    before = dict(items_of(held)) if type(held) is type(checked) else {}
    fresh = {
        name: settled(parent, join(key, str(name)), before.get(name), item, seen)
        for name, item in sorted(items_of(checked), key=lambda pair: in_order(pair[0]))
    }
    if isinstance(held, dict):
        held.clear()
        held.update(fresh)
        return held
    if isinstance(held, list):
        held[:] = fresh.values()
        return held
    return fresh if isinstance(checked, dict) else type(checked)(fresh.values())


def refuse_foreign(value: Any, where: str) -> None:
    """Raises where a value is of a kind that no config can hold, because no text could."""
    if isinstance(value, CONTAINERS):
        if type(value) not in CONTAINERS:
            kind = next(kind for kind in CONTAINERS if isinstance(value, kind))
            raise _foreign(value, where, f"Use a plain {kind.__name__}.")
        _refuse_keys(value, where)
        for key, item in items_of(value):
            refuse_foreign(item, join(where, str(key)))
    elif not (value is REQUIRED or type(value) in SCALARS or is_config(value) or callable(value)):
        raise _foreign(value, where, "Describe it by plain values, or by a config that builds it.")


def _refuse_keys(value: Any, where: str) -> None:
    """Keys of items that have lines of their own become pieces of paths; others are literals."""
    if not isinstance(value, dict):
        return
    has_lines = any(holds_lines(item) for item in value.values())
    for key in value:
        if has_lines and not (isinstance(key, str) and _KEY.fullmatch(key)):
            raise ConfigError(
                f"{where}: the key {key!r} cannot be part of a path. "
                "In a dict of configs or functions, use letters, digits, '_' and '-'."
            )
        if not is_plain(key):
            raise _foreign(key, f"{where} (a key)", "Use strings or numbers as keys.")


def holds_lines(value: Any) -> bool:
    """Says whether text needs more than a literal for a value: it holds a config or a function."""
    return not is_plain(value)


def is_plain(value: Any) -> bool:
    """Says whether a value can be written as a literal."""
    if isinstance(value, list | tuple):
        return all(is_plain(item) for item in value)
    if isinstance(value, dict):
        return all(is_plain(item) for item in [*value, *value.values()])
    return value is REQUIRED or type(value) in SCALARS


def _foreign(value: Any, where: str, advice: str) -> ConfigError:
    return ConfigError(
        f"{where}: a config cannot hold {value!r} ({type(value).__name__}); it holds None, bool, "
        f"int, float, str, functions, configs, and lists, tuples and dicts of these. {advice}"
    )
