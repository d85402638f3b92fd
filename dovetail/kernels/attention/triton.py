"""Attention on GPUs by JAX's Pallas kernel for Triton: causal or full, with segments.

JAX has one for Mosaic GPU too, which is quicker on an H100, but has no segments, and no backward
pass under a causal mask (0.10.2).

B batch, S sequence, H heads, K key-value heads, D width of a head.
"""

from __future__ import annotations

import functools
from importlib.util import find_spec
from typing import Any

import jax
import jax.numpy as jnp

from dovetail.kernels.attention.device_parts import band_of, common_refusal, on_parts
from dovetail.kernels.attention.masks import Mask
from dovetail.kernels.attention.op import OUTPUT_TAG, attention_op
from dovetail.kernels.attention.work import block_share, flash_flops
from dovetail.kernels.registry import is_interpreted
from dovetail.parallel import tag

LIBRARY = "jax.experimental.pallas.ops.gpu.attention"
BLOCK = 128
WIDEST = 128


def _supports(
    query_BSHD: jax.Array,
    key_BTKD: jax.Array,
    value_BTKW: jax.Array,
    *,
    mask: Mask,
    score_map: Any = None,
    sinks_H: jax.Array | None = None,
    **call: Any,
) -> str | None:
    if find_spec(LIBRARY) is None:
        return f"this JAX ({jax.__version__}) has no {LIBRARY}"
    if score_map is not None:
        return f"it knows no score map, and this is {score_map}"
    if sinks_H is not None:
        return "it knows no sinks"
    if query_BSHD.dtype not in (jnp.bfloat16, jnp.float16, jnp.float32):
        return f"it takes bfloat16, float16 or float32, not {query_BSHD.dtype}"
    if query_BSHD.shape[1] % BLOCK:
        return f"a sequence of {query_BSHD.shape[1]} is no multiple of {BLOCK}"
    width = query_BSHD.shape[3]
    if value_BTKW.shape[3] != width or not 16 <= width <= WIDEST:
        return (
            f"it takes keys and values of one width, from 16 to {WIDEST}, "
            f"not {width} and {value_BTKW.shape[3]}"
        )
    refusal = common_refusal(query_BSHD, key_BTKD, value_BTKW, mask=mask, **call)
    if refusal is None and mask.band not in ((None, None), (None, 0)):
        return f"it knows no windows, and this is {mask}"
    return refusal


@attention_op.register(
    "triton",
    platforms=("gpu",),
    supports=_supports,
    before="blockwise",
    # One kernel has all gradients, in two loops that each compute the scores again.
    kernel_flops=flash_flops(
        {"mha_forward": 2, "mha_backward": 7, "mha_preprocess_backward": 0}, heads_axis=2
    ),
    share=block_share(BLOCK),
)
def triton(
    query_BSHD: jax.Array,
    key_BTKD: jax.Array,
    value_BTKW: jax.Array,
    *,
    mask: Mask,
    query_segments_BS: jax.Array | None,
    scale: float,
    **_: Any,
) -> jax.Array:
    """Computes attention by the Triton kernel; see `attention` for the arguments."""
    part = functools.partial(_on_device, band_of(mask).ahead == 0, scale)
    mixed_BSHD = on_parts(part, query_BSHD, key_BTKD, value_BTKW, query_segments_BS, None)
    return tag(mixed_BSHD, OUTPUT_TAG)


def _on_device(
    is_causal: bool,
    scale: float,
    query_BSHD: jax.Array,
    key_BSKD: jax.Array,
    value_BSKD: jax.Array,
    segments_BS: jax.Array | None,
    _: None,
) -> jax.Array:
    """Runs the kernel on one device's part."""
    from jax.experimental.pallas.ops.gpu import attention as library

    # The kernel wants as many key-value heads as heads.
    shared = query_BSHD.shape[2] // key_BSKD.shape[2]
    key_BSHD, value_BSHD = (jnp.repeat(array, shared, axis=2) for array in (key_BSKD, value_BSKD))
    return library.mha(
        query_BSHD,
        key_BSHD,
        value_BSHD,
        segments_BS,
        sm_scale=scale,
        causal=is_causal,
        interpret=is_interpreted(),
    )
