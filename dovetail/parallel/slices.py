"""Slices: which mesh axes span them, and the order of devices in the mesh.

Inside a slice fast links connect devices (a TPU pod's ICI torus, a host's NVLink). Between slices
there is only the data-center network (DCN), so an axis over it should communicate little.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from dovetail.config import ConfigError

# Gradients once per step, or one activation per microbatch: little enough for the DCN.
DCN_AXES = ("data", "pipeline")


def slice_sizes(devices: Sequence[Any]) -> list[int]:
    """Returns the number of devices in each slice, in slice order."""
    counts = Counter(_slice_of(device) for device in devices)
    return [counts[index] for index in sorted(counts)]


def slices_per_axis(
    sizes: Mapping[str, int], slices: int, dcn: Mapping[str, int], name: str, *, any_axis: bool
) -> dict[str, int]:
    """Returns the number of slices along each mesh axis.

    Args:
        sizes: the size of each mesh axis.
        slices: the number of slices.
        dcn: the config's choice; empty chooses automatically.
        name: the layout's name in an error.
        any_axis: whether axes beyond `data` and `pipeline` may span slices if those are too small.
            Between GPU hosts, sharding parameters over the network is usual.
    """
    if dcn:
        return _checked(sizes, slices, dcn, name)
    others = [axis for axis in sizes if axis not in DCN_AXES] if any_axis else []
    found, remaining = dict.fromkeys(sizes, 1), slices
    for axis in (*DCN_AXES, *others):
        found[axis] = math.gcd(sizes[axis], remaining)
        remaining //= found[axis]
    if remaining > 1:
        raise _no_axis_over_slices(sizes, slices, name)
    return found


def arrange_devices(
    devices: Sequence[Any], sizes: Mapping[str, int], dcn: Mapping[str, int]
) -> np.ndarray[Any, Any]:
    """Returns the devices in the shape of the mesh, ordered by their topology."""
    shape = tuple(sizes.values())
    # Any order of virtual devices is as good, and tests choose it.
    if devices[0].platform == "cpu":
        return np.asarray(devices, dtype=object).reshape(shape)
    from jax.experimental import mesh_utils

    dcn_shape = tuple(dcn.values())
    ici_shape = tuple(size // over for size, over in zip(shape, dcn_shape, strict=True))
    try:
        if math.prod(dcn_shape) == 1:
            return mesh_utils.create_device_mesh(ici_shape, devices, allow_split_physical_axes=True)
        return mesh_utils.create_hybrid_device_mesh(
            ici_shape, dcn_shape, devices, allow_split_physical_axes=True
        )
    except AssertionError:  # the devices form no box of the torus: there is no better order
        ordered = sorted(devices, key=_slice_of)
        return _merge(np.asarray(ordered, dtype=object).reshape(*dcn_shape, *ici_shape), shape)


def _merge(blocks: np.ndarray[Any, Any], shape: tuple[int, ...]) -> np.ndarray[Any, Any]:
    """Merges each DCN axis with the ICI axis of the same name, DCN outermost."""
    count = len(shape)
    pairs = [axis for index in range(count) for axis in (index, index + count)]
    return blocks.transpose(pairs).reshape(shape)


def _slice_of(device: Any) -> int:
    return int(getattr(device, "slice_index", None) or 0)


def _checked(
    sizes: Mapping[str, int], slices: int, dcn: Mapping[str, int], name: str
) -> dict[str, int]:
    written = ", ".join(f"{axis}={over}" for axis, over in dcn.items())
    product = math.prod(dcn.values())
    if product != slices:
        raise ConfigError(
            f"{name}.dcn: {written} is {product} slices, but there "
            f"{'is 1' if slices == 1 else f'are {slices}'}. Choose numbers that multiply to "
            f"{slices}, or leave them out."
        )
    for axis, over in dcn.items():
        if sizes[axis] % over:
            raise ConfigError(
                f"{name}.dcn.{axis}: {axis}={sizes[axis]} does not divide over {over} slices. "
                f"Make {name}.{axis} a multiple of {over}, or choose another axis."
            )
    return {axis: dcn.get(axis, 1) for axis in sizes}


def _no_axis_over_slices(sizes: Mapping[str, int], slices: int, name: str) -> ConfigError:
    written = ", ".join(f"{axis}={size}" for axis, size in sizes.items() if size > 1)
    largest = max(sizes, key=lambda axis: sizes[axis])
    return ConfigError(
        f"{name}: {written} over {slices} slices: expected data (or pipeline) to be a multiple of "
        f"{slices}, so that no other axis spans slices, got data={sizes['data']} and "
        f"pipeline={sizes['pipeline']}. Set {name}.data={slices}, or choose the axis yourself, "
        f"such as {name}.dcn.{largest}={slices}."
    )
