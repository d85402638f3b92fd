"""Attention on TPUs by JAX's splash kernel, which skips fully masked blocks.

It is a Pallas kernel that comes with JAX: causal masks and windows, segments, GQA, soft caps and
sinks, forward and backward, in memory that is linear in the sequence.

B batch, S queries, T keys (T = S here), H heads, K KV heads, D width of queries and keys, W width
of values.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from importlib.util import find_spec
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from dovetail.kernels.attention.flops import flash_flops, visible_fraction
from dovetail.kernels.attention.masks import Band
from dovetail.kernels.attention.op import OUTPUT_TAG, AttentionCall
from dovetail.kernels.attention.shards import (
    band_of,
    kernel_refusal,
    run_on_shards,
    score_map_refusal,
    soft_cap,
)
from dovetail.kernels.dispatch import implementation, is_interpreted
from dovetail.parallel import record_tag

LIBRARY = "jax.experimental.pallas.ops.tpu.splash_attention"
LANES = 128
MAX_BLOCK = 512
# Blocks of q, k and v, and of scores in float32, fit 16 MiB of VMEM.
MAX_BLOCK_BYTES = 512 * 1024


def _supports(call: AttentionCall) -> str | None:
    q_BSHD = call.q_BSHD
    if not _has_library():
        return f"this JAX ({jax.__version__}) has no {LIBRARY}"
    refusal = score_map_refusal(call)
    if refusal is not None:
        return refusal
    if q_BSHD.shape[1] % LANES:
        return f"a sequence of {q_BSHD.shape[1]} is no multiple of {LANES}"
    if q_BSHD.dtype not in (jnp.float32, jnp.bfloat16):
        return f"it takes float32 or bfloat16, not {q_BSHD.dtype}"
    return kernel_refusal(call)


def _flops_fraction(call: AttentionCall) -> float:
    sequence = call.q_BSHD.shape[1]
    return visible_fraction(call.mask, sequence, sequence, call_block_size(call))


@implementation(
    "splash",
    platforms=("tpu",),
    supports=_supports,
    # The kernels of dq, and of dk and dv, each recompute the scores.
    kernel_flops=flash_flops(
        {"splash_mha_fwd": 2, "splash_mha_dq": 3, "splash_mha_dkv": 4}, heads_axis=1
    ),
    flops_fraction=_flops_fraction,
)
def splash(call: AttentionCall) -> jax.Array:
    """Computes attention by the splash kernel."""
    return run_on_shards(_run_on_shard, call)


def call_block_size(call: AttentionCall) -> int:
    """Returns the queries or keys of a block of this call."""
    _, sequence, _, width = call.q_BSHD.shape
    return block_size(sequence, max(width, call.v_BTKW.shape[3]), call.q_BSHD.dtype.itemsize)


def block_size(sequence: int, width: int, itemsize: int) -> int:
    """Returns the queries or keys of a block: as many as fit VMEM and divide the sequence."""
    size = min(MAX_BLOCK, MAX_BLOCK_BYTES // (max(width, LANES) * itemsize))
    size = max(LANES, size // LANES * LANES)
    return next(block for block in range(size, 0, -LANES) if sequence % block == 0)


def _run_on_shard(call: AttentionCall) -> jax.Array:
    """Runs the kernel on one device's shard."""
    from jax.experimental.pallas.ops.tpu.splash_attention import SegmentIds

    _, sequence, heads, _ = call.q_BSHD.shape
    size = call_block_size(call)
    kernel = _kernel(band_of(call.mask), soft_cap(call), sequence, heads, size, is_interpreted())
    record_tag(OUTPUT_TAG)  # the kernel tags its output itself
    sinks_H = None if call.sinks_H is None else _cast_gradient(call.sinks_H)

    def row(q_HSD: Any, k_KSD: Any, v_KSW: Any, segment_ids_S: Any) -> Any:
        segments = None if segment_ids_S is None else SegmentIds(segment_ids_S, segment_ids_S)
        return kernel(q_HSD, k_KSD, v_KSW, segments, sinks_H)

    q_BSHD, k_BSKD, v_BSKW = call.qkv
    # The kernel has no scale argument.
    q_BSHD = (q_BSHD * call.scale).astype(q_BSHD.dtype)
    q_BHSD, k_BKSD, v_BKSW = (array.swapaxes(1, 2) for array in (q_BSHD, k_BSKD, v_BSKW))
    return jax.vmap(row)(q_BHSD, k_BKSD, v_BKSW, call.q_segment_ids_BS).swapaxes(1, 2)


@jax.custom_vjp
def _cast_gradient(sinks_H: jax.Array) -> jax.Array:
    """Returns the sinks; casts their gradient, which the kernel returns in the dtype of q."""
    return sinks_H


_cast_gradient.defvjp(
    lambda sinks_H: (sinks_H, sinks_H),
    lambda sinks_H, dsinks_H: (dsinks_H.astype(sinks_H.dtype),),
)


@functools.lru_cache(maxsize=64)
def _kernel(
    band: Band, cap: float | None, sequence: int, heads: int, size: int, interpret: bool
) -> Any:
    """Returns the kernel for a mask, with its list of blocks that are not fully masked."""
    from jax.experimental.pallas.ops.tpu import splash_attention as library

    shape = (sequence, sequence)
    if band == (None, None):
        mask: Any = library.FullMask(shape)
    elif band == (None, 0):
        mask = library.CausalMask(shape)
    else:
        mask = library.LocalMask(shape, window_size=band, offset=0)
    names = ("block_q", "block_kv", "block_q_dkv", "block_kv_dkv", "block_q_dq", "block_kv_dq")
    blocks: dict[str, Any] = dict.fromkeys(names, size)
    return _as_numpy(
        lambda: library.make_splash_mha(
            library.MultiHeadMask([mask] * heads),
            block_sizes=library.BlockSizes(**blocks),
            attn_logits_soft_cap=cap,
            head_shards=1,
            q_seq_shards=1,
            # Tags the residuals of the backward pass, so that a remat policy can save them.
            residual_checkpoint_name=OUTPUT_TAG,
            interpret=interpret,
        )
    )


def _as_numpy(make: Callable[[], Any]) -> Any:
    """Returns a tree of arrays as NumPy arrays, to be cached for programs on other devices.

    It is traced, not run: the arrays are constants, and running would start all of JAX's backends,
    which takes a fifth of the time until the first line of a plan.
    """
    traced, shapes = jax.make_jaxpr(make, return_shape=True)()
    constants = dict(zip(map(id, traced.jaxpr.constvars), traced.consts, strict=True))
    results = [constants.get(id(variable)) for variable in traced.jaxpr.outvars]
    if any(result is None for result in results):  # not all constants: compute them
        with jax.ensure_compile_time_eval():
            return jax.tree.map(np.asarray, make())
    return jax.tree.unflatten(jax.tree.structure(shapes), map(np.asarray, results))


@functools.cache
def _has_library() -> bool:
    try:
        return find_spec(LIBRARY) is not None
    except ModuleNotFoundError:
        return False
