"""Attention on GPUs by Pallas kernels for Triton: bands, segments, score maps, sinks, wide heads.

JAX has one such kernel, without windows, caps or sinks, and up to a width of 128. Blocks are sized
so that data-centre GPUs from an A100 on take them.

B batch, S sequence, H heads, K key-value heads, D width of queries and keys, W of values.
"""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp

from dovetail.kernels.attention import triton_kernels as kernels
from dovetail.kernels.attention.device_parts import band_of, common_refusal, on_parts
from dovetail.kernels.attention.flash import Flash, Rows, attend
from dovetail.kernels.attention.masks import Mask
from dovetail.kernels.attention.op import attention_op
from dovetail.kernels.attention.ranges import seen_by, that_see
from dovetail.kernels.attention.work import flash_flops, visible_share
from dovetail.kernels.registry import is_interpreted
from dovetail.kernels.score_maps import ScoreMap
from dovetail.kernels.triton_tiles import SMALLEST_SIDE, missing_library

WIDEST = 256
TYPES = (jnp.bfloat16, jnp.float16, jnp.float32)


def supports(
    query_BSHD: jax.Array, key_BTKD: jax.Array, value_BTKW: jax.Array, **call: Any
) -> str | None:
    """Returns why a call cannot be taken, or None if it can."""
    if query_BSHD.shape[1] % kernels.LARGEST_BLOCK:
        return f"a sequence of {query_BSHD.shape[1]} is no multiple of {kernels.LARGEST_BLOCK}"
    refusal = arrays_refusal(query_BSHD, key_BTKD, value_BTKW)
    return refusal or common_refusal(query_BSHD, key_BTKD, value_BTKW, **call)


def arrays_refusal(query_BSHD: jax.Array, key_BTKD: jax.Array, value_BTKW: jax.Array) -> str | None:
    """Returns why the kernels cannot take arrays, be they as long as they may; None if they can."""
    missing = missing_library()
    if missing is not None:
        return missing
    types = {str(array.dtype) for array in (query_BSHD, key_BTKD, value_BTKW)}
    if query_BSHD.dtype not in TYPES or len(types) > 1:
        return f"it takes bfloat16, float16 or float32, not {' and '.join(sorted(types))}"
    for width in (query_BSHD.shape[3], value_BTKW.shape[3]):
        if width % SMALLEST_SIDE or width > WIDEST:
            return f"a width of {width} is no multiple of {SMALLEST_SIDE} up to {WIDEST}"
    return None


def _share(
    query_BSHD: jax.Array, key_BTKD: jax.Array, value_BTKW: jax.Array, *, mask: Mask, **_: Any
) -> float:
    block = kernels.backward_blocks(query_BSHD, value_BTKW).own
    return visible_share(mask, query_BSHD.shape[1], key_BTKD.shape[1], block)


@attention_op.register(
    "triton",
    platforms=("gpu",),
    supports=supports,
    before="blockwise",
    # The gradient of queries, and that of keys and values, each compute the scores again.
    kernel_flops=flash_flops(
        {"flash_forward": 2, "flash_queries": 3, "flash_keys": 4}, heads_axis=2
    ),
    share=_share,
)
def triton(
    query_BSHD: jax.Array,
    key_BTKD: jax.Array,
    value_BTKW: jax.Array,
    *,
    mask: Mask,
    query_segments_BS: jax.Array | None,
    scale: float,
    score_map: ScoreMap | None = None,
    sinks_H: jax.Array | None = None,
    **_: Any,
) -> jax.Array:
    """Computes attention by the Triton kernels; see `attention` for the arguments."""
    flash = Flash(_forward, backward, band_of(mask), scale, score_map, is_interpreted())
    part = functools.partial(attend, flash)
    return on_parts(part, query_BSHD, key_BTKD, value_BTKW, query_segments_BS, sinks_H)


def _forward(
    flash: Flash,
    query_BSHD: jax.Array,
    key_BSKD: jax.Array,
    value_BSKW: jax.Array,
    segments_BS: jax.Array | None,
    sinks_H: jax.Array | None,
) -> tuple[jax.Array, jax.Array]:
    seen = seen_by(flash.band, segments_BS, query_BSHD.shape)
    return kernels.forward(_how(flash), query_BSHD, key_BSKD, value_BSKW, seen, sinks_H)


def backward(
    flash: Flash,
    query_BSHD: jax.Array,
    key_BSKD: jax.Array,
    value_BSKW: jax.Array,
    segments_BS: jax.Array | None,
    rows: Rows,
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Returns the gradients of queries, keys and values."""
    how, inputs = _how(flash), (query_BSHD, key_BSKD, value_BSKW)
    seen = seen_by(flash.band, segments_BS, query_BSHD.shape)
    seeing = that_see(flash.band, segments_BS, query_BSHD.shape)
    to_query_BSHD = kernels.query_gradients(how, *inputs, seen, rows)
    return to_query_BSHD, *kernels.key_gradients(how, *inputs, seeing, rows)


def _how(flash: Flash) -> kernels.How:
    return kernels.How(flash.scale, flash.score_map, flash.interpret)
