"""Flash attention on GPUs by Pallas kernels for Triton: bands, segments, score maps, sinks.

JAX has one such kernel, without windows, soft caps or sinks, and up to a width of 128. Blocks are
sized for data-centre GPUs from an A100 on.

B batch, S queries, T keys (T = S here), H heads, K KV heads, D width of queries and keys, W width
of values.
"""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from dovetail.kernels.attention.flash import FlashPasses, backward_inputs, flash_attention
from dovetail.kernels.attention.flops import flash_flops, visible_fraction
from dovetail.kernels.attention.gpu import triton_kernels as kernels
from dovetail.kernels.attention.masks import Band, Mask
from dovetail.kernels.attention.ranges import kv_ranges, q_ranges
from dovetail.kernels.attention.shards import band_of, kernel_refusal, run_on_shards
from dovetail.kernels.attention.xla.scores import sinks_gradient
from dovetail.kernels.registry import implementation, is_interpreted
from dovetail.kernels.score_maps import ScoreMap
from dovetail.kernels.triton_tiles import SMALLEST_SIDE, missing_library

MAX_WIDTH = 256
DTYPES = (jnp.bfloat16, jnp.float16, jnp.float32)


class TritonPlan(NamedTuple):
    """The static arguments of both passes: hashable."""

    band: Band
    options: kernels.TritonOptions


def supports(q_BSHD: jax.Array, k_BTKD: jax.Array, v_BTKW: jax.Array, **call: Any) -> str | None:
    """Returns why a call cannot be taken, or None if it can."""
    if q_BSHD.shape[1] % kernels.MAX_BLOCK:
        return f"a sequence of {q_BSHD.shape[1]} is no multiple of {kernels.MAX_BLOCK}"
    refusal = arrays_refusal(q_BSHD, k_BTKD, v_BTKW)
    return refusal or kernel_refusal(q_BSHD, k_BTKD, v_BTKW, **call)


def arrays_refusal(q_BSHD: jax.Array, k_BTKD: jax.Array, v_BTKW: jax.Array) -> str | None:
    """Returns why the kernels cannot take arrays of these dtypes and widths, or None."""
    missing = missing_library()
    if missing is not None:
        return missing
    dtypes = {str(array.dtype) for array in (q_BSHD, k_BTKD, v_BTKW)}
    if q_BSHD.dtype not in DTYPES or len(dtypes) > 1:
        return f"it takes bfloat16, float16 or float32, not {' and '.join(sorted(dtypes))}"
    for width in (q_BSHD.shape[3], v_BTKW.shape[3]):
        if width % SMALLEST_SIDE or width > MAX_WIDTH:
            return f"a width of {width} is no multiple of {SMALLEST_SIDE} up to {MAX_WIDTH}"
    return None


def _flops_fraction(
    q_BSHD: jax.Array, k_BTKD: jax.Array, v_BTKW: jax.Array, *, mask: Mask, **_: Any
) -> float:
    block = kernels.backward_blocks(q_BSHD, v_BTKW).block_m
    return visible_fraction(mask, q_BSHD.shape[1], k_BTKD.shape[1], block)


@implementation(
    "triton",
    platforms=("gpu",),
    supports=supports,
    # The kernels of dq, and of dk and dv, each recompute the scores.
    kernel_flops=flash_flops({"flash_forward": 2, "flash_dq": 3, "flash_dkv": 4}, heads_axis=2),
    flops_fraction=_flops_fraction,
)
def triton(
    q_BSHD: jax.Array,
    k_BTKD: jax.Array,
    v_BTKW: jax.Array,
    *,
    mask: Mask,
    q_segment_ids_BS: jax.Array | None,
    scale: float,
    score_map: ScoreMap | None = None,
    sinks_H: jax.Array | None = None,
    **_: Any,
) -> jax.Array:
    """Computes attention by the Triton kernels; see `attention` for the arguments."""
    plan = TritonPlan(band_of(mask), kernels.TritonOptions(scale, score_map, is_interpreted()))
    kernel = functools.partial(flash_attention, FlashPasses(_forward, backward, plan))
    return run_on_shards(kernel, q_BSHD, k_BTKD, v_BTKW, q_segment_ids_BS, sinks_H)


def _forward(
    plan: TritonPlan,
    q_BSHD: jax.Array,
    k_BSKD: jax.Array,
    v_BSKW: jax.Array,
    segment_ids_BS: jax.Array | None,
    sinks_H: jax.Array | None,
) -> tuple[jax.Array, jax.Array]:
    ranges = kv_ranges(plan.band, segment_ids_BS, q_BSHD.shape)
    return kernels.forward(plan.options, q_BSHD, k_BSKD, v_BSKW, ranges, sinks_H)


def backward(
    plan: TritonPlan,
    q_BSHD: jax.Array,
    k_BSKD: jax.Array,
    v_BSKW: jax.Array,
    segment_ids_BS: jax.Array | None,
    sinks_H: jax.Array | None,
    o_BSHW: jax.Array,
    lse_BHS: jax.Array,
    do_BSHW: jax.Array,
) -> tuple[Any, ...]:
    """Returns dq, dk, dv, None for the segment ids, and the gradient of the sinks."""
    given, qkv = backward_inputs(o_BSHW, do_BSHW, lse_BHS), (q_BSHD, k_BSKD, v_BSKW)
    keys = kv_ranges(plan.band, segment_ids_BS, q_BSHD.shape)
    queries = q_ranges(plan.band, segment_ids_BS, q_BSHD.shape)
    dq_BSHD = kernels.backward_dq(plan.options, *qkv, keys, given)
    dk_BSKD, dv_BSKW = kernels.backward_dkv(plan.options, *qkv, queries, given)
    # Each head has its own sink, as if no heads shared a KV head.
    dsinks_H = sinks_gradient(sinks_H, lse_BHS[:, :, None], given.delta_BHS[:, :, None])
    return dq_BSHD, dk_BSKD, dv_BSKW, None, dsinks_H
