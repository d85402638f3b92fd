"""Attention on TPUs by JAX's splash kernel, which skips the blocks that the mask leaves empty.

It is written in Pallas and comes with JAX: causal and windowed masks, segments, shared key-value
heads, soft caps and sinks, forwards and backwards. Nothing quadratic is in memory.

B batch, S sequence, H heads, K key-value heads, D width of queries and keys, W of values.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from importlib.util import find_spec
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from dovetail.kernels.attention.device_parts import band_of, common_refusal, on_parts
from dovetail.kernels.attention.masks import Band, Mask
from dovetail.kernels.attention.op import OUTPUT_TAG, attention_op
from dovetail.kernels.attention.work import flash_flops, visible_share
from dovetail.kernels.registry import is_interpreted
from dovetail.kernels.score_maps import ScoreMap, SoftCap
from dovetail.parallel import note_tag

LIBRARY = "jax.experimental.pallas.ops.tpu.splash_attention"
LANES = 128
LARGEST_BLOCK = 512
# Blocks of queries, keys and values, and of scores in float32, stand in 16 MiB of fast memory.
LARGEST_BLOCK_BYTES = 512 * 1024


def _supports(
    query_BSHD: jax.Array,
    key_BTKD: jax.Array,
    value_BTKW: jax.Array,
    *,
    score_map: ScoreMap | None = None,
    **call: Any,
) -> str | None:
    if not _is_there():
        return f"this JAX ({jax.__version__}) has no {LIBRARY}"
    if score_map is not None and not isinstance(score_map, SoftCap):
        return f"it knows no score map but SoftCap, and this is {score_map}"
    if query_BSHD.shape[1] % LANES:
        return f"a sequence of {query_BSHD.shape[1]} is no multiple of {LANES}"
    if query_BSHD.dtype not in (jnp.float32, jnp.bfloat16):
        return f"it takes float32 or bfloat16, not {query_BSHD.dtype}"
    return common_refusal(query_BSHD, key_BTKD, value_BTKW, **call)


def _share(
    query_BSHD: jax.Array, key_BTKD: jax.Array, value_BTKW: jax.Array, *, mask: Mask, **_: Any
) -> float:
    sequence, width = query_BSHD.shape[1], max(query_BSHD.shape[3], value_BTKW.shape[3])
    block = block_size(sequence, width, query_BSHD.dtype.itemsize)
    return visible_share(mask, sequence, sequence, block)


@attention_op.register(
    "splash",
    platforms=("tpu",),
    supports=_supports,
    before="blockwise",
    # The gradient of queries, and that of keys and values, each compute the scores again.
    kernel_flops=flash_flops(
        {"splash_mha_fwd": 2, "splash_mha_dq": 3, "splash_mha_dkv": 4}, heads_axis=1
    ),
    share=_share,
)
def splash(
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
    """Computes attention by the splash kernel; see `attention` for the arguments."""
    cap = score_map.cap if isinstance(score_map, SoftCap) else None
    part = functools.partial(_on_device, band_of(mask), scale, cap)
    return on_parts(part, query_BSHD, key_BTKD, value_BTKW, query_segments_BS, sinks_H)


def block_size(sequence: int, width: int, itemsize: int) -> int:
    """Returns how many queries or keys are a block: as many as fit and divide the sequence."""
    size = min(LARGEST_BLOCK, LARGEST_BLOCK_BYTES // (max(width, LANES) * itemsize))
    size = max(LANES, size // LANES * LANES)
    return next(block for block in range(size, 0, -LANES) if sequence % block == 0)


def _on_device(
    band: Band,
    scale: float,
    cap: float | None,
    query_BSHD: jax.Array,
    key_BSKD: jax.Array,
    value_BSKW: jax.Array,
    segments_BS: jax.Array | None,
    sinks_H: jax.Array | None,
) -> jax.Array:
    """Runs the kernel on one device's part."""
    from jax.experimental.pallas.ops.tpu.splash_attention import SegmentIds

    _, sequence, heads, width = query_BSHD.shape
    size = block_size(sequence, max(width, value_BSKW.shape[3]), query_BSHD.dtype.itemsize)
    kernel = _kernel(band, cap, sequence, heads, size, is_interpreted())
    note_tag(OUTPUT_TAG)  # the kernel gives it by itself
    sinks_H = None if sinks_H is None else _own_gradient_type(sinks_H)

    def row(query_HSD: Any, key_KSD: Any, value_KSW: Any, segments_S: Any) -> Any:
        segments = None if segments_S is None else SegmentIds(segments_S, segments_S)
        return kernel(query_HSD, key_KSD, value_KSW, segments, sinks_H)

    # The kernel has no scale of its own.
    query_BSHD = (query_BSHD * scale).astype(query_BSHD.dtype)
    arrays = (query_BSHD, key_BSKD, value_BSKW)
    query_BHSD, key_BKSD, value_BKSW = (array.swapaxes(1, 2) for array in arrays)
    return jax.vmap(row)(query_BHSD, key_BKSD, value_BKSW, segments_BS).swapaxes(1, 2)


@jax.custom_vjp
def _own_gradient_type(sinks_H: jax.Array) -> jax.Array:
    """Returns what came in; its gradient, which the kernel gives in the queries' type, is cast."""
    return sinks_H


_own_gradient_type.defvjp(
    lambda sinks_H: (sinks_H, sinks_H),
    lambda sinks_H, gradient_H: (gradient_H.astype(sinks_H.dtype),),
)


@functools.lru_cache(maxsize=64)
def _kernel(
    band: Band, cap: float | None, sequence: int, heads: int, size: int, interpret: bool
) -> Any:
    """Returns the kernel for a mask, which lists the blocks that are not empty."""
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
    return _on_no_device(
        lambda: library.make_splash_mha(
            library.MultiHeadMask([mask] * heads),
            block_sizes=library.BlockSizes(**blocks),
            attn_logits_soft_cap=cap,
            head_shards=1,
            q_seq_shards=1,
            # What the backward pass reads carries the tag, as a policy wants it that keeps it.
            residual_checkpoint_name=OUTPUT_TAG,
            interpret=interpret,
        )
    )


def _on_no_device(make: Callable[[], Any]) -> Any:
    """Returns a tree of arrays as NumPy's: it is kept for other programs, on other devices.

    It is traced, and not run: the arrays are constants, and for a few numbers all of JAX's
    backends would be started, which is a fifth of the time until a plan's first line.
    """
    traced, shapes = jax.make_jaxpr(make, return_shape=True)()
    constants = dict(zip(map(id, traced.jaxpr.constvars), traced.consts, strict=True))
    results = [constants.get(id(variable)) for variable in traced.jaxpr.outvars]
    if any(result is None for result in results):  # there is something to compute after all
        with jax.ensure_compile_time_eval():
            return jax.tree.map(np.asarray, make())
    return jax.tree.unflatten(jax.tree.structure(shapes), map(np.asarray, results))


@functools.cache
def _is_there() -> bool:
    try:
        return find_spec(LIBRARY) is not None
    except ModuleNotFoundError:
        return False
