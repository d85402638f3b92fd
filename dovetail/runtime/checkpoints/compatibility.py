"""Checks that saved arrays fit a model, and lists all that do not."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax

from dovetail.config import ConfigError, did_you_mean
from dovetail.runtime.checkpoints.manifest import Manifest

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


def check_complete(folder: Path | str, manifest: Manifest, like: Mapping[str, Any]) -> None:
    """Rejects the checkpoint of another state; lists what differs."""
    saved = manifest.arrays
    check_compatible(folder, like, {path: array.shape for path, array in saved.items()})
    wanted = {path for path, struct in like.items() if struct.size}
    if missing := sorted(wanted - saved.keys()):
        unknown = ", ".join(sorted(saved.keys() - wanted)[:3])
        raise ConfigError(
            f"{folder} lacks {missing[0]} and {len(missing) - 1} other arrays of this state"
            + (f"; it has {unknown}, ... instead" if unknown else "")
            + ". Resume with the model and optimizer that the run began with."
        )


def parameter_names(manifest: Manifest) -> dict[str, str]:
    """Returns the name of each saved parameter and variable in the state, by path."""
    names: dict[str, str] = {}
    for group in ("variables/", "params/", "ema/"):  # averages come last, so that they win
        found = (name for name in manifest.arrays if name.startswith(group))
        names |= {name.removeprefix(group): name for name in found}
    return names
