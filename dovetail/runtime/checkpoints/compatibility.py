"""Whether saved arrays fit a model: a list of all that do not."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import jax

from dovetail.config import ConfigError, did_you_mean

_LISTED = 10


def check_compatible(
    source: Path | str,
    like: Mapping[str, jax.ShapeDtypeStruct],
    shapes: Mapping[str, tuple[int, ...]],
) -> None:
    """Rejects the arrays of another model; names those that differ.

    Args:
        source: where the arrays are, for the message.
        like: the arrays that the model wants. Some may be missing in the source.
        shapes: the shapes of the saved arrays.
    """
    different = [
        f"{path}: its shape in {source} is {shapes[path]}, but this model expects "
        f"{tuple(like[path].shape)}."
        for path in sorted(like.keys() & shapes.keys())
        if shapes[path] != tuple(like[path].shape)
    ]
    if different:
        more = f"\n... and {len(different) - _LISTED} more." if len(different) > _LISTED else ""
        listed = "\n".join(different[:_LISTED])
        raise ConfigError(f"{listed}{more} Configure the model with the sizes of the saved one.")
    if like and not like.keys() & shapes.keys():
        first = min(like)
        raise ConfigError(
            f"{source} has no parameter of this model; {first!r}, for example, is missing. "
            + did_you_mean(first, shapes)
        )
