"""Attention on GPUs by Pallas kernels for Triton: bands, segments, score maps, sinks, any width.

JAX has one such kernel, without windows, caps or sinks, and up to a width of 128. Those of Mosaic
GPU are quicker where they run (see `mosaic`); these run on every GPU that Triton knows.

B batch, S sequence, H heads, K key-value heads, D width of queries and keys, W of values.
"""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from dovetail.kernels.attention import triton_kernels as kernels
from dovetail.kernels.attention.device_parts import band_of, common_refusal, on_parts
from dovetail.kernels.attention.masks import Band, Mask
from dovetail.kernels.attention.op import OUTPUT_TAG, attention_op
from dovetail.kernels.attention.ranges import seen_by, that_see
from dovetail.kernels.attention.scores import sinks_gradient
from dovetail.kernels.attention.work import flash_flops, visible_share
from dovetail.kernels.registry import is_interpreted
from dovetail.kernels.score_maps import ScoreMap
from dovetail.kernels.triton_tiles import SMALLEST_SIDE, missing_library
from dovetail.parallel import tag

WIDEST = 256
TYPES = (jnp.bfloat16, jnp.float16, jnp.float32)


class Call(NamedTuple):
    """What is known of a call before any array: static, and so hashable."""

    band: Band
    flash: kernels.Flash


def _supports(
    query_BSHD: jax.Array, key_BTKD: jax.Array, value_BTKW: jax.Array, **call: Any
) -> str | None:
    missing = missing_library()
    if missing is not None:
        return missing
    types = {str(array.dtype) for array in (query_BSHD, key_BTKD, value_BTKW)}
    if query_BSHD.dtype not in TYPES or len(types) > 1:
        return f"it takes bfloat16, float16 or float32, not {', '.join(sorted(types))}"
    if query_BSHD.shape[1] % kernels.LARGEST_BLOCK:
        return f"a sequence of {query_BSHD.shape[1]} is no multiple of {kernels.LARGEST_BLOCK}"
    for width in (query_BSHD.shape[3], value_BTKW.shape[3]):
        if width % SMALLEST_SIDE or width > WIDEST:
            return f"a width of {width} is no multiple of {SMALLEST_SIDE} up to {WIDEST}"
    return common_refusal(query_BSHD, key_BTKD, value_BTKW, **call)


def _share(
    query_BSHD: jax.Array, key_BTKD: jax.Array, value_BTKW: jax.Array, *, mask: Mask, **_: Any
) -> float:
    block = kernels.backward_blocks(query_BSHD, value_BTKW).own
    return visible_share(mask, query_BSHD.shape[1], key_BTKD.shape[1], block)


@attention_op.register(
    "triton",
    platforms=("gpu",),
    supports=_supports,
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
    call = Call(band_of(mask), kernels.Flash(scale, score_map, is_interpreted()))
    part = functools.partial(_attend, call)
    return on_parts(part, query_BSHD, key_BTKD, value_BTKW, query_segments_BS, sinks_H)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _attend(
    call: Call,
    query_BSHD: jax.Array,
    key_BSKD: jax.Array,
    value_BSKW: jax.Array,
    segments_BS: jax.Array | None,
    sinks_H: jax.Array | None,
) -> jax.Array:
    """Computes one device's part."""
    return _forward(call, query_BSHD, key_BSKD, value_BSKW, segments_BS, sinks_H)[0]


def _forward(
    call: Call,
    query_BSHD: jax.Array,
    key_BSKD: jax.Array,
    value_BSKW: jax.Array,
    segments_BS: jax.Array | None,
    sinks_H: jax.Array | None,
) -> tuple[jax.Array, tuple[Any, ...]]:
    seen = seen_by(call.band, segments_BS, *query_BSHD.shape[:2])
    mixed_BSHW, log_BHS = kernels.forward(
        call.flash, query_BSHD, key_BSKD, value_BSKW, seen, sinks_H
    )
    # Both carry the tag: a policy that keeps the output spares the backward pass this one.
    mixed_BSHW, log_BHS = tag(mixed_BSHW, OUTPUT_TAG), tag(log_BHS, OUTPUT_TAG)
    kept = (query_BSHD, key_BSKD, value_BSKW, segments_BS, sinks_H, mixed_BSHW, log_BHS)
    return mixed_BSHW, kept


def _backward(call: Call, kept: tuple[Any, ...], gradient_BSHW: jax.Array) -> tuple[Any, ...]:
    *inputs, segments_BS, sinks_H, mixed_BSHW, log_BHS = kept
    # The sum of shares times their gradients is the output times its gradient.
    product_BSHW = mixed_BSHW.astype(jnp.float32) * gradient_BSHW.astype(jnp.float32)
    mean_BHS = product_BSHW.sum(axis=-1).swapaxes(1, 2)
    place = (call.band, segments_BS, *gradient_BSHW.shape[:2])
    rest = (gradient_BSHW, log_BHS, mean_BHS)
    to_query_BSHD = kernels.query_gradients(call.flash, *inputs, seen_by(*place), *rest)
    to_key_BSKD, to_value_BSKW = kernels.key_gradients(
        call.flash, *inputs, that_see(*place), *rest
    )
    # Here every head has its own sink, as if no two shared a key-value head.
    to_sinks_H = sinks_gradient(sinks_H, log_BHS[:, :, None], mean_BHS[:, :, None])
    return to_query_BSHD, to_key_BSKD, to_value_BSKW, None, to_sinks_H


_attend.defvjp(_forward, _backward)
