"""The values that a field may hold: compared, copied into a tree, and sorted.

A value is None, a bool, a number, a string, REQUIRED, a function, a config, or a list, tuple or
dict of values. This file recognizes a config only by its class attribute `__config_fields__`, so
that `base` can import it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, NoReturn

from dovetail.config.errors import ConfigError

SCALARS = frozenset((bool, int, float, str, type(None)))
CONTAINERS = (list, tuple, dict)
_KEY = re.compile(r"[\w\-]+")
_NUMBER = re.compile(r"[0-9]{1,15}")


class _Required:
    """The value of a field that must still be set. Any use raises a ConfigError."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "REQUIRED"

    def __eq__(self, other: object) -> bool:
        return True if other is self else _fail()

    def __hash__(self) -> int:
        return id(self)

    def __getattr__(self, name: str) -> NoReturn:
        # Python (to copy, to inspect) and IPython (to display) look up such names.
        if name.startswith("_"):
            raise AttributeError(name)
        _fail()

    def __copy__(self) -> _Required:
        return self

    def __deepcopy__(self, memo: object) -> _Required:
        return self

    def __reduce__(self) -> str:
        return "REQUIRED"


def _fail(*args: object, **kwargs: object) -> NoReturn:
    raise ConfigError(
        "A REQUIRED config value was used before it was set. "
        "Set the field in the experiment, or with key.path=value on the command line."
    )


_USES = (
    "bool int float complex index call getitem setitem delitem iter next reversed len contains "
    "enter abs neg pos invert round trunc floor ceil format bytes fspath array jax_array add radd "
    "sub rsub mul rmul truediv rtruediv floordiv rfloordiv mod rmod divmod rdivmod pow rpow "
    "lt le gt ge and rand or ror xor rxor lshift rlshift rshift rrshift matmul rmatmul"
)
for _use in _USES.split():
    setattr(_Required, f"__{_use}__", _fail)

# Typed `Any` so that a field of any type may start out REQUIRED.
REQUIRED: Any = _Required()


def is_config_class(candidate: Any) -> bool:
    """Says whether a class is a Config."""
    return isinstance(candidate, type) and _is_config_class(candidate)


def is_config(value: Any) -> bool:
    """Says whether a value is a config."""
    return _is_config_class(type(value))


_config_classes: dict[Any, bool] = {}


def _is_config_class(candidate: Any) -> bool:
    """Caches the answer: there are millions of calls for a few hundred classes."""
    known = _config_classes.get(candidate)
    if known is None:
        known = _config_classes[candidate] = hasattr(candidate, "__config_fields__")
    return known


def join(*pieces: str) -> str:
    """Joins the non-empty pieces of a path with dots."""
    return ".".join(piece for piece in pieces if piece)


def items_of(value: Any) -> list[tuple[Any, Any]]:
    """Returns the (key, item) pairs of a list, tuple or dict; nothing for any other value."""
    if isinstance(value, dict):
        return list(value.items())
    return list(enumerate(value)) if isinstance(value, list | tuple) else []


def rebuild(value: Any, items: list[Any]) -> Any:
    """Returns a container of the type and keys of `value`, with other items."""
    if isinstance(value, dict):
        return dict(zip(value, items, strict=True))
    return tuple(items) if isinstance(value, tuple) else items


def configs_inside(value: Any, key: str = "") -> Iterator[tuple[str, Any]]:
    """Yields the configs in a value, with their keys, looking into lists, tuples and dicts."""
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


def sort_key(name: Any) -> tuple[int, int, str, str]:
    """Returns the sort key of a dict key or path piece: numbers first, by value, then names."""
    text = str(name)
    if _NUMBER.fullmatch(text):
        return (0, int(text), text, type(name).__name__)
    return (1, 0, text, type(name).__name__)


def path_sort_key(path: str) -> list[tuple[int, int, str, str]]:
    """Returns the sort key of a path: piece by piece, so that parents precede their children."""
    return [sort_key(piece) for piece in path.split(".") if piece]


def copy_into(parent: Any, key: str, value: Any) -> Any:
    """Copies a value into a tree, so that no two fields ever share a config or a container.

    Dicts are sorted by key: configs with equal text must be iterated in the same order.
    """
    if is_config(value):
        return value._copy(parent, key)
    if type(value) not in CONTAINERS:
        return value
    if isinstance(value, dict):
        keys = sorted(value, key=sort_key)
        return {name: copy_into(parent, join(key, str(name)), value[name]) for name in keys}
    return rebuild(value, [copy_into(parent, join(key, str(i)), v) for i, v in enumerate(value)])


def normalized(parent: Any, key: str, held: Any, checked: Any, seen: set[int]) -> Any:
    """Normalizes a container that may have been changed in place.

    `checked` is what `held` should contain. A config whose parent is another one, or that occurs
    twice, is replaced by a copy. Lists and dicts stay the same objects.
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
        name: normalized(parent, join(key, str(name)), before.get(name), item, seen)
        for name, item in sorted(items_of(checked), key=lambda pair: sort_key(pair[0]))
    }
    if isinstance(held, dict):
        held.clear()
        held.update(fresh)
        return held
    if isinstance(held, list):
        held[:] = fresh.values()
        return held
    return fresh if isinstance(checked, dict) else type(checked)(fresh.values())


def check_storable(value: Any, where: str) -> None:
    """Raises if a value is of a type that config text cannot express."""
    if isinstance(value, CONTAINERS):
        if type(value) not in CONTAINERS:
            kind = next(kind for kind in CONTAINERS if isinstance(value, kind))
            raise _not_storable(value, where, f"Use a plain {kind.__name__}.")
        _check_keys(value, where)
        for key, item in items_of(value):
            check_storable(item, join(where, str(key)))
    elif not (value is REQUIRED or type(value) in SCALARS or is_config(value) or callable(value)):
        raise _not_storable(
            value, where, "Describe it by plain values, or by a config that builds it."
        )


def _check_keys(value: Any, where: str) -> None:
    """Checks keys: of items with lines of their own they are path pieces, else literals."""
    if not isinstance(value, dict):
        return
    has_lines = any(not is_plain(item) for item in value.values())
    for key in value:
        if has_lines and not (isinstance(key, str) and _KEY.fullmatch(key)):
            raise ConfigError(
                f"{where}: the key {key!r} cannot be a piece of a path. "
                "In a dict of configs or functions, use letters, digits, '_' and '-'."
            )
        if not is_plain(key):
            raise _not_storable(key, f"{where} (a key)", "Use strings or numbers as keys.")


def is_plain(value: Any) -> bool:
    """Says whether a value can be written as a literal: it holds no config and no function."""
    if isinstance(value, list | tuple):
        return all(is_plain(item) for item in value)
    if isinstance(value, dict):
        return all(is_plain(item) for item in [*value, *value.values()])
    return value is REQUIRED or type(value) in SCALARS


def _not_storable(value: Any, where: str, advice: str) -> ConfigError:
    return ConfigError(
        f"{where}: a config cannot hold {value!r} ({type(value).__name__}); it holds None, bool, "
        f"int, float, str, functions, configs, and lists, tuples and dicts of these. {advice}"
    )
