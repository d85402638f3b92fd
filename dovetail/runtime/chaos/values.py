"""Damage to the arrays of a running step: a flipped bit on one device, and NaN."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np


def nan_batch(batch: Any) -> Any:
    """Makes the numbers of a batch NaN, on one device of this process."""
    return _change_largest(batch, lambda data: np.full_like(data, np.nan))


MANTISSA_BIT, EXPONENT_BIT = 20, 30
"""Bits of a float32: one that changes it a little, and one that makes it huge."""


def flipped_bit(state: Any, bit: int = MANTISSA_BIT) -> Any:
    """Flips a bit of the first number of the largest array, on one device of this process."""

    def flip(data: np.ndarray) -> np.ndarray:
        bits = data.reshape(-1).view(f"u{data.dtype.itemsize}")
        bits[0] ^= 1 << min(bit, 8 * data.dtype.itemsize - 2)
        return data

    return _change_largest(state, flip)


def _change_largest(tree: Any, change: Callable[[np.ndarray], np.ndarray]) -> Any:
    """Changes one shard of the largest floating-point array of a tree."""
    leaves, treedef = jax.tree.flatten(tree)
    floats = [n for n, leaf in enumerate(leaves) if jnp.issubdtype(leaf.dtype, jnp.floating)]
    largest = max(floats, key=lambda n: leaves[n].size)
    array = leaves[largest]
    shards = [shard.data for shard in array.addressable_shards]
    changed = change(np.array(shards[0], copy=True))
    shards[0] = jax.device_put(changed, shards[0].sharding)
    leaves[largest] = jax.make_array_from_single_device_arrays(array.shape, array.sharding, shards)
    return jax.tree.unflatten(treedef, leaves)
