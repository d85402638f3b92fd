"""Flash attention on GPUs by Pallas kernels for Triton: bands, segments, score maps, sinks.

JAX has one such kernel, without windows, soft caps or sinks, and up to a width of 128. Blocks are
sized for data-centre GPUs from an A100 on.

B batch, S queries, T keys (T = S here), H heads, K KV heads, D width of queries and keys, W width
of values.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp

from dovetail.kernels.attention.flash import (
    FlashPasses,
    Gradients,
    backward_inputs,
    flash_attention,
)
from dovetail.kernels.attention.flops import flash_flops, visible_fraction
from dovetail.kernels.attention.gpu import triton_kernels as kernels
from dovetail.kernels.attention.op import AttentionCall
from dovetail.kernels.attention.ranges import TokenRanges, kv_ranges, q_ranges
from dovetail.kernels.attention.shards import band_of, kernel_refusal, run_on_shards
from dovetail.kernels.attention.xla.scores import sinks_gradient_by_head
from dovetail.kernels.dispatch import implementation, is_interpreted
from dovetail.kernels.triton_tiles import SMALLEST_SIDE, missing_library

MAX_WIDTH = 256
DTYPES = (jnp.bfloat16, jnp.float16, jnp.float32)


def supports(call: AttentionCall) -> str | None:
    """Returns why a call cannot be taken, or None if it can."""
    length = call.q_BSHD.shape[1]
    if length % kernels.MAX_BLOCK:
        return f"a sequence of {length} is no multiple of {kernels.MAX_BLOCK}"
    return arrays_refusal(call) or kernel_refusal(call)


def arrays_refusal(call: AttentionCall) -> str | None:
    """Returns why the kernels cannot take arrays of these dtypes and widths, or None."""
    missing = missing_library()
    if missing is not None:
        return missing
    dtypes = {str(array.dtype) for array in call.qkv}
    if call.q_BSHD.dtype not in DTYPES or len(dtypes) > 1:
        return f"it takes bfloat16, float16 or float32, not {' and '.join(sorted(dtypes))}"
    for width in (call.q_BSHD.shape[3], call.v_BTKW.shape[3]):
        if width % SMALLEST_SIDE or width > MAX_WIDTH:
            return f"a width of {width} is no multiple of {SMALLEST_SIDE} up to {MAX_WIDTH}"
    return None


def _flops_fraction(call: AttentionCall) -> float:
    block = kernels.backward_blocks(call).block_m
    return visible_fraction(call.mask, call.q_BSHD.shape[1], call.k_BTKD.shape[1], block)


@implementation(
    "triton",
    platforms=("gpu",),
    supports=supports,
    # The kernels of dq, and of dk and dv, each recompute the scores.
    kernel_flops=flash_flops({"flash_forward": 2, "flash_dq": 3, "flash_dkv": 4}, heads_axis=2),
    flops_fraction=_flops_fraction,
)
def triton(call: AttentionCall) -> jax.Array:
    """Computes attention by the Triton kernels."""
    return run_with_gradients(_forward, call)


def run_with_gradients(
    forward: Callable[..., tuple[jax.Array, jax.Array]], call: AttentionCall
) -> jax.Array:
    """Runs a forward pass (from options and a call) that has the gradients of these kernels."""
    options = kernels.TritonOptions(call.scale, call.score_map, is_interpreted())
    passes = FlashPasses(forward, _backward, options)
    return run_on_shards(functools.partial(flash_attention, passes), call)


def _forward(options: kernels.TritonOptions, call: AttentionCall) -> tuple[jax.Array, jax.Array]:
    return kernels.forward(options, call, call_ranges(kv_ranges, call))


def _backward(
    options: kernels.TritonOptions,
    call: AttentionCall,
    o_BSHW: jax.Array,
    lse_BHS: jax.Array,
    do_BSHW: jax.Array,
) -> Gradients:
    given = backward_inputs(o_BSHW, do_BSHW, lse_BHS)
    keys, queries = (call_ranges(find, call) for find in (kv_ranges, q_ranges))
    gradients = kernels.backward(options, call, keys, queries, given)
    return Gradients(*gradients, sinks_gradient_by_head(call, given))


def call_ranges(find: Callable[..., TokenRanges], call: AttentionCall) -> TokenRanges:
    """Returns `kv_ranges` or `q_ranges` of a call."""
    return find(band_of(call.mask), call.q_segment_ids_BS, call.q_BSHD.shape)
