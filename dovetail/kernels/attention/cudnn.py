"""Attention on NVIDIA's GPUs by cuDNN, through `jax.nn.dot_product_attention`.

It takes causal masks and windows in half precision, and shared key-value heads. JAX's public door
to it knows no segments but as a dense mask, so packed rows are left to the next implementation.

B batch, S sequence, H heads, K key-value heads, D width of a head.
"""

from __future__ import annotations

import functools
from typing import Any, Literal

import jax
import jax.numpy as jnp

from dovetail.hardware import can_compile_for
from dovetail.kernels.attention.device_parts import band_of, common_refusal, on_parts
from dovetail.kernels.attention.masks import Band, Mask
from dovetail.kernels.attention.op import OUTPUT_TAG, attention_op
from dovetail.parallel import tag

WIDEST = 128
BACKEND: Literal["cudnn", "xla"] = "cudnn"
"""What JAX computes by; its other choice runs anywhere, so that a test can compare."""


def _supports(
    query_BSHD: jax.Array,
    key_BTKD: jax.Array,
    value_BTKW: jax.Array,
    *,
    query_segments_BS: jax.Array | None,
    score_map: Any = None,
    sinks_H: jax.Array | None = None,
    **call: Any,
) -> str | None:
    if BACKEND == "cudnn" and not can_compile_for("gpu"):
        return "JAX's CUDA plugin is not installed"
    width = query_BSHD.shape[3]
    if query_segments_BS is not None:
        return "JAX gives cuDNN no segments"
    if score_map is not None:
        return f"it knows no score map, and this is {score_map}"
    if sinks_H is not None:
        return "it knows no sinks"
    if query_BSHD.dtype not in (jnp.bfloat16, jnp.float16):
        return f"it takes bfloat16 or float16, not {query_BSHD.dtype}"
    if value_BTKW.shape[3] != width or width % 8 or width > WIDEST:
        return (
            f"it takes keys and values of one width, a multiple of 8 up to {WIDEST}, "
            f"not {width} and {value_BTKW.shape[3]}"
        )
    return common_refusal(query_BSHD, key_BTKD, value_BTKW, **call)


@attention_op.register("cudnn", platforms=("gpu",), supports=_supports, before="mosaic")
def cudnn(
    query_BSHD: jax.Array,
    key_BTKD: jax.Array,
    value_BTKW: jax.Array,
    *,
    mask: Mask,
    scale: float,
    **_: Any,
) -> jax.Array:
    """Computes attention by cuDNN; see `attention` for the arguments."""
    part = functools.partial(_on_device, band_of(mask), scale)
    return tag(on_parts(part, query_BSHD, key_BTKD, value_BTKW, None, None), OUTPUT_TAG)


def _on_device(
    band: Band,
    scale: float,
    query_BSHD: jax.Array,
    key_BSKD: jax.Array,
    value_BSKD: jax.Array,
    *_: None,
) -> jax.Array:
    """Runs cuDNN on one device's part."""
    return jax.nn.dot_product_attention(
        query_BSHD,
        key_BSKD,
        value_BSKD,
        scale=scale,
        is_causal=band.ahead == 0,
        local_window_size=None if band.back is None else (band.back, 0),
        implementation=BACKEND,
    )
