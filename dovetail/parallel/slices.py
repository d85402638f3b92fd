"""Slices: which mesh axes cross the network between them, and where each device stands.

Inside of a slice fast links join devices (the torus of a TPU pod, the NVLink of a host); between
slices there is only the network. So what crosses should say little, and seldom.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from dovetail.config import ConfigError

# Gradients once a step, or one activation a micro-batch: what the network between slices can take.
CROSSING = ("data", "pipeline")


def slice_sizes(devices: Sequence[Any]) -> list[int]:
    """Returns how many of the devices are in each slice, in the order of the slices."""
    counts = Counter(_slice_of(device) for device in devices)
    return [counts[index] for index in sorted(counts)]


def crossing(
    sizes: Mapping[str, int], slices: int, asked: Mapping[str, int], name: str, *, any_axis: bool
) -> dict[str, int]:
    """Returns over how many slices each mesh axis goes.

    Args:
        sizes: the size of each mesh axis.
        slices: how many slices there are.
        asked: what the config says; empty means that it is to be found.
        name: how an error names the layout.
        any_axis: whether axes that say much may cross where the others are too small: over the
            network between GPUs parameters are split as a matter of course.
    """
    if asked:
        return _as_asked(sizes, slices, asked, name)
    others = [axis for axis in sizes if axis not in CROSSING] if any_axis else []
    found, left = dict.fromkeys(sizes, 1), slices
    for axis in (*CROSSING, *others):
        found[axis] = math.gcd(sizes[axis], left)
        left //= found[axis]
    if left > 1:
        raise _nothing_crosses(sizes, slices, name)
    return found


def arranged(
    devices: Sequence[Any], sizes: Mapping[str, int], across: Mapping[str, int]
) -> np.ndarray[Any, Any]:
    """Returns the devices in the shape of the mesh, neighbours where most is said."""
    shape = tuple(sizes.values())
    # The order of virtual devices is as good as any, and tests choose it.
    if devices[0].platform == "cpu":
        return np.asarray(devices, dtype=object).reshape(shape)
    from jax.experimental import mesh_utils

    crossed = tuple(across.values())
    inside = tuple(size // over for size, over in zip(shape, crossed, strict=True))
    try:
        if math.prod(crossed) == 1:
            return mesh_utils.create_device_mesh(inside, devices, allow_split_physical_axes=True)
        return mesh_utils.create_hybrid_device_mesh(
            inside, crossed, devices, allow_split_physical_axes=True
        )
    except AssertionError:  # some devices that are no box of the torus have no better order
        ordered = sorted(devices, key=_slice_of)
        return _joined(np.asarray(ordered, dtype=object).reshape(*crossed, *inside), shape)


def _joined(blocks: np.ndarray[Any, Any], shape: tuple[int, ...]) -> np.ndarray[Any, Any]:
    """Puts the axes across slices before those inside of them, pair by pair."""
    count = len(shape)
    pairs = [axis for index in range(count) for axis in (index, index + count)]
    return blocks.transpose(pairs).reshape(shape)


def _slice_of(device: Any) -> int:
    return int(getattr(device, "slice_index", None) or 0)


def _as_asked(
    sizes: Mapping[str, int], slices: int, asked: Mapping[str, int], name: str
) -> dict[str, int]:
    written = ", ".join(f"{axis}={over}" for axis, over in asked.items())
    product = math.prod(asked.values())
    if product != slices:
        raise ConfigError(
            f"{name}.across: {written} goes over {product} slices, but there "
            f"{'is 1' if slices == 1 else f'are {slices}'}. Choose numbers that multiply to "
            f"{slices}, or leave them out, and they are found."
        )
    for axis, over in asked.items():
        if sizes[axis] % over:
            raise ConfigError(
                f"{name}.across.{axis}: {axis}={sizes[axis]} does not divide over {over} slices. "
                f"Make {name}.{axis} a multiple of {over}, or let another axis cross."
            )
    return {axis: asked.get(axis, 1) for axis in sizes}


def _nothing_crosses(sizes: Mapping[str, int], slices: int, name: str) -> ConfigError:
    written = ", ".join(f"{axis}={size}" for axis, size in sizes.items() if size > 1)
    largest = max(sizes, key=lambda axis: sizes[axis])
    return ConfigError(
        f"{name}: {written} over {slices} slices: expected data (or pipeline) to be a multiple of "
        f"{slices}, so that nothing else crosses the network between slices, got "
        f"data={sizes['data']} and pipeline={sizes['pipeline']}. Set {name}.data={slices}; or say "
        f"which axis crosses all the same, such as {name}.across.{largest}={slices}."
    )
