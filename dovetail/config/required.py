"""REQUIRED: the value of a field that somebody must still set."""

from __future__ import annotations

from typing import Any, NoReturn

from dovetail.config.errors import ConfigError


class _Required:
    """A value that fails loudly on any use, so that a forgotten field never becomes a strange number."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "REQUIRED"

    def __copy__(self) -> _Required:
        return self

    def __deepcopy__(self, memo: object) -> _Required:
        return self

    def __reduce__(self) -> str:
        return "REQUIRED"


def _fail(self: _Required, *args: object, **kwargs: object) -> NoReturn:
    raise ConfigError(
        "A REQUIRED config value was used before it was set. "
        "Set the field in the experiment, or with key.path=value on the command line."
    )


_USES = (
    "bool int float index call getattr getitem iter len contains enter abs neg pos invert round "
    "add radd sub rsub mul rmul truediv rtruediv floordiv rfloordiv mod rmod pow rpow "
    "lt le gt ge and rand or ror xor rxor lshift rshift matmul rmatmul"
)
for _use in _USES.split():
    setattr(_Required, f"__{_use}__", _fail)

# Typed `Any` so that a field of any type may start out REQUIRED.
REQUIRED: Any = _Required()
