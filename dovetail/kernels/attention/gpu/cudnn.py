"""Attention on NVIDIA GPUs by cuDNN, through `jax.nn.dot_product_attention`.

It supports causal masks, windows and GQA in half precision. JAX's public API passes it segments
only as a dense mask, so packed rows go to the next implementation.
"""

from __future__ import annotations

from typing import Literal

import jax
import jax.numpy as jnp

from dovetail.kernels.attention.op import OUTPUT_TAG, AttentionCall
from dovetail.kernels.attention.shards import band_of, kernel_refusal, run_on_shards
from dovetail.kernels.dispatch import implementation
from dovetail.parallel import tag
from dovetail.utils import can_compile_for

MAX_WIDTH = 128
BACKEND: Literal["cudnn", "xla"] = "cudnn"
"""The `implementation` that JAX is given. "xla" runs anywhere, so that a test can compare."""


def _supports(call: AttentionCall) -> str | None:
    if BACKEND == "cudnn" and not can_compile_for("gpu"):
        return "JAX's CUDA plugin is not installed"
    dtype, width, value_width = call.q_BSHD.dtype, call.q_BSHD.shape[3], call.v_BTKW.shape[3]
    if call.q_segment_ids_BS is not None:
        return "JAX passes no segment ids to cuDNN"
    if call.score_map is not None:
        return f"it supports no score map, and this is {call.score_map}"
    if call.sinks_H is not None:
        return "it supports no sinks"
    if dtype not in (jnp.bfloat16, jnp.float16):
        return f"it takes bfloat16 or float16, not {dtype}"
    if value_width != width or width % 8 or width > MAX_WIDTH:
        return (
            f"it takes keys and values of one width, a multiple of 8 up to {MAX_WIDTH}, "
            f"not {width} and {value_width}"
        )
    return kernel_refusal(call)


@implementation("cudnn", platforms=("gpu",), supports=_supports)
def cudnn(call: AttentionCall) -> jax.Array:
    """Computes attention by cuDNN."""
    return tag(run_on_shards(_run_on_shard, call), OUTPUT_TAG)


def _run_on_shard(call: AttentionCall) -> jax.Array:
    """Runs cuDNN on one device's shard."""
    band = band_of(call.mask)
    return jax.nn.dot_product_attention(
        *call.qkv,
        scale=call.scale,
        is_causal=band.ahead == 0,
        local_window_size=None if band.back is None else (band.back, 0),
        implementation=BACKEND,
    )
