"""REQUIRED: the value of a field that somebody must still set."""

from __future__ import annotations

from typing import Any, NoReturn

from dovetail.config.errors import ConfigError


class _Required:
    """A value that fails loudly on any use, so that a forgotten field never becomes a number."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "REQUIRED"

    def __eq__(self, other: object) -> bool:
        return True if other is self else _fail()

    def __hash__(self) -> int:
        return id(self)

    def __getattr__(self, name: str) -> NoReturn:
        # Python (to copy, to inspect) and IPython (to show) ask for such names: that is no use.
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
