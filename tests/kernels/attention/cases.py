"""Calls of attention that the tests share."""

from __future__ import annotations

import itertools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from dovetail.kernels.attention import Mask

Arrays = tuple[jax.Array, jax.Array, jax.Array]


def arrays(
    batch: int,
    queries: int,
    keys: int,
    heads: int,
    kv_heads: int,
    width: int,
    dtype: str = "float32",
    value_width: int | None = None,
) -> Arrays:
    """Returns random queries, keys and values."""
    generator = np.random.default_rng(queries + keys)
    query = generator.standard_normal((batch, queries, heads, width))
    key = generator.standard_normal((batch, keys, kv_heads, width))
    value = generator.standard_normal((batch, keys, kv_heads, value_width or width))
    return jnp.asarray(query, dtype), jnp.asarray(key, dtype), jnp.asarray(value, dtype)


def packed(batch: int, length: int) -> tuple[jax.Array, jax.Array]:
    """Returns positions and segments of packed rows: pieces of several lengths, then padding."""
    positions = np.zeros((batch, length), np.int32)
    segments = np.zeros((batch, length), np.int32)
    for row in range(batch):
        ends = [0, length // 3 + row, length // 2 + 5, length - 9 - row]
        for segment, (start, stop) in enumerate(itertools.pairwise(ends), start=1):
            positions[row, start:stop] = np.arange(stop - start)
            segments[row, start:stop] = segment
    return jnp.asarray(positions), jnp.asarray(segments)


def aligned_call(mask: Mask, batch: int, length: int, is_packed: bool) -> dict[str, Any]:
    """Returns the other arguments of a call without memory."""
    if is_packed:
        positions, segments = packed(batch, length)
    else:
        positions, segments = jnp.asarray([np.arange(length)] * batch), None
    return {
        "mask": mask,
        "query_positions_BS": positions,
        "key_positions_BT": positions,
        "query_segments_BS": segments,
        "key_segments_BT": segments,
        "aligned": True,
    }
