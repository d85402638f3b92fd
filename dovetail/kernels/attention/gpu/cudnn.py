"""Attention on NVIDIA GPUs by cuDNN, through `jax.nn.dot_product_attention`.

It supports causal masks, windows and GQA in half precision. JAX's public API passes it segments
only as a dense mask, so packed rows go to the next implementation.

B batch, S queries, T keys (T = S here), H heads, K KV heads, D width of queries and keys, W width
of values.
"""

from __future__ import annotations

import functools
from typing import Any, Literal

import jax
import jax.numpy as jnp

from dovetail.kernels.attention.masks import Band, Mask
from dovetail.kernels.attention.op import OUTPUT_TAG
from dovetail.kernels.attention.shards import band_of, kernel_refusal, run_on_shards
from dovetail.kernels.registry import implementation
from dovetail.parallel import tag
from dovetail.utils import can_compile_for

MAX_WIDTH = 128
BACKEND: Literal["cudnn", "xla"] = "cudnn"
"""The `implementation` that JAX is given. "xla" runs anywhere, so that a test can compare."""


def _supports(
    q_BSHD: jax.Array,
    k_BTKD: jax.Array,
    v_BTKW: jax.Array,
    *,
    q_segment_ids_BS: jax.Array | None,
    score_map: Any = None,
    sinks_H: jax.Array | None = None,
    **call: Any,
) -> str | None:
    if BACKEND == "cudnn" and not can_compile_for("gpu"):
        return "JAX's CUDA plugin is not installed"
    width = q_BSHD.shape[3]
    if q_segment_ids_BS is not None:
        return "JAX passes no segment ids to cuDNN"
    if score_map is not None:
        return f"it supports no score map, and this is {score_map}"
    if sinks_H is not None:
        return "it supports no sinks"
    if q_BSHD.dtype not in (jnp.bfloat16, jnp.float16):
        return f"it takes bfloat16 or float16, not {q_BSHD.dtype}"
    if v_BTKW.shape[3] != width or width % 8 or width > MAX_WIDTH:
        return (
            f"it takes keys and values of one width, a multiple of 8 up to {MAX_WIDTH}, "
            f"not {width} and {v_BTKW.shape[3]}"
        )
    return kernel_refusal(q_BSHD, k_BTKD, v_BTKW, **call)


@implementation("cudnn", platforms=("gpu",), supports=_supports)
def cudnn(
    q_BSHD: jax.Array,
    k_BTKD: jax.Array,
    v_BTKW: jax.Array,
    *,
    mask: Mask,
    scale: float,
    **_: Any,
) -> jax.Array:
    """Computes attention by cuDNN; see `attention` for the arguments."""
    kernel = functools.partial(_run_on_shard, band_of(mask), scale)
    return tag(run_on_shards(kernel, q_BSHD, k_BTKD, v_BTKW, None, None), OUTPUT_TAG)


def _run_on_shard(
    band: Band,
    scale: float,
    q_BSHD: jax.Array,
    k_BSKD: jax.Array,
    v_BSKW: jax.Array,
    *_: None,
) -> jax.Array:
    """Runs cuDNN on one device's shard."""
    return jax.nn.dot_product_attention(
        q_BSHD,
        k_BSKD,
        v_BSKW,
        scale=scale,
        is_causal=band.ahead == 0,
        local_window_size=None if band.back is None else (band.back, 0),
        implementation=BACKEND,
    )
