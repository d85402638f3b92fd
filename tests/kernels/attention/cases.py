"""Calls of attention that the tests share."""

from __future__ import annotations

import itertools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from dovetail.kernels.attention import AttentionCall, Mask

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
    q = generator.standard_normal((batch, queries, heads, width))
    k = generator.standard_normal((batch, keys, kv_heads, width))
    v = generator.standard_normal((batch, keys, kv_heads, value_width or width))
    return jnp.asarray(q, dtype), jnp.asarray(k, dtype), jnp.asarray(v, dtype)


def packed(batch: int, length: int) -> tuple[jax.Array, jax.Array]:
    """Returns positions and segments of packed rows: documents of several lengths, then padding."""
    positions = np.zeros((batch, length), np.int32)
    segments = np.zeros((batch, length), np.int32)
    for row in range(batch):
        ends = [0, length // 3 + row, length // 2 + 5, length - 9 - row]
        for segment, (start, stop) in enumerate(itertools.pairwise(ends), start=1):
            positions[row, start:stop] = np.arange(stop - start)
            segments[row, start:stop] = segment
    return jnp.asarray(positions), jnp.asarray(segments)


def aligned_call(mask: Mask, batch: int, length: int, is_packed: bool) -> dict[str, Any]:
    """Returns the other arguments of an aligned call."""
    if is_packed:
        positions, segments = packed(batch, length)
    else:
        positions, segments = jnp.asarray([np.arange(length)] * batch), None
    return {
        "mask": mask,
        "q_positions_BS": positions,
        "kv_positions_BT": positions,
        "q_segment_ids_BS": segments,
        "kv_segment_ids_BT": segments,
        "aligned": True,
    }


def record(inputs: Arrays, call: dict[str, Any]) -> AttentionCall:
    """Returns the record of a call, as implementations take it."""
    q, k, v = inputs
    return AttentionCall(q_BSHD=q, k_BTKD=k, v_BTKW=v, **{"scale": 1.0, **call})
