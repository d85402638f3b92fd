"""Attention on Hopper GPUs by tokamax's Pallas kernels for Mosaic GPU.

They use what is new in those GPUs: asynchronous copies and products, by warps with different tasks.
What is visible they take as ranges of keys, so packed segments cost no mask. tokamax 0.0.12 has
kernels for Blackwell, too, whose gradients take heads of 64 alone with JAX 0.10.2.

tokamax's front door knows no ranges, and would keep nothing for a remat policy, so what is called
here lies behind it.

B batch, S sequence, H heads, K key-value heads, D width of queries and keys, W of values.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from typing import Any, Literal

import jax
import jax.numpy as jnp

from dovetail.kernels.attention.device_parts import band_of, common_refusal, on_parts
from dovetail.kernels.attention.flash import Flash, Rows, attend
from dovetail.kernels.attention.masks import Mask
from dovetail.kernels.attention.op import attention_op
from dovetail.kernels.attention.ranges import seen_by
from dovetail.kernels.registry import current_device, is_interpreted
from dovetail.kernels.score_maps import ScoreMap, SoftCap

GENERATION = "9"
BLOCK = 128
WIDEST = 256
BACKEND: Literal["mosaic", "xla"] = "mosaic"
"""What tokamax computes by; its plain operations run anywhere, so that a test can compare."""


def _supports(
    query_BSHD: jax.Array,
    key_BTKD: jax.Array,
    value_BTKW: jax.Array,
    *,
    score_map: ScoreMap | None = None,
    sinks_H: jax.Array | None = None,
    **call: Any,
) -> str | None:
    if find_spec("tokamax") is None:
        return "tokamax is not installed"
    capability = (
        "9.0" if BACKEND == "xla" else str(getattr(current_device(), "compute_capability", "?"))
    )
    if capability.split(".")[0] != GENERATION:
        return f"it is for GPUs of compute capability {GENERATION}, not {capability}"
    if score_map is not None and not isinstance(score_map, SoftCap):
        return f"it knows no score map but SoftCap, and this is {score_map}"
    if sinks_H is not None:
        return "it knows no sinks"
    if query_BSHD.dtype not in (jnp.bfloat16, jnp.float16):
        return f"it takes bfloat16 or float16, not {query_BSHD.dtype}"
    if query_BSHD.shape[1] % BLOCK:
        return f"a sequence of {query_BSHD.shape[1]} is no multiple of {BLOCK}"
    width = max(query_BSHD.shape[3], value_BTKW.shape[3])
    if width > WIDEST:
        return f"a width of {width} is more than {WIDEST}"
    return common_refusal(query_BSHD, key_BTKD, value_BTKW, **call)


@attention_op.register(
    "mosaic",
    platforms=("gpu",),
    supports=_supports,
    before="triton",
    when=lambda: BACKEND == "xla" or current_device() is not None,
)
def mosaic(
    query_BSHD: jax.Array,
    key_BTKD: jax.Array,
    value_BTKW: jax.Array,
    *,
    mask: Mask,
    query_segments_BS: jax.Array | None,
    scale: float,
    score_map: ScoreMap | None = None,
    **_: Any,
) -> jax.Array:
    """Computes attention by tokamax's kernels; see `attention` for the arguments."""
    flash = Flash(_forward, _backward, band_of(mask), scale, score_map, is_interpreted())
    part = functools.partial(attend, flash)
    return on_parts(part, query_BSHD, key_BTKD, value_BTKW, query_segments_BS, None)


def _forward(
    flash: Flash,
    query_BSHD: jax.Array,
    key_BSKD: jax.Array,
    value_BSKW: jax.Array,
    segments_BS: jax.Array | None,
    _: None,
) -> tuple[jax.Array, jax.Array]:
    with _for_this_gpu():
        mixed_BSHW, (highest_BHS, total_BHS) = _operations()[0](
            query_BSHD,
            key_BSKD,
            value_BSKW,
            logits_scale=flash.scale,
            logits_soft_cap=_cap(flash),
            mask=_mask(flash, segments_BS, query_BSHD),
            return_residuals=True,
        )
    return mixed_BSHW, highest_BHS + jnp.log(total_BHS)


def _backward(
    flash: Flash,
    query_BSHD: jax.Array,
    key_BSKD: jax.Array,
    value_BSKW: jax.Array,
    segments_BS: jax.Array | None,
    rows: Rows,
) -> tuple[jax.Array, jax.Array, jax.Array]:
    half = jax.lax.DotAlgorithmPreset
    precision = {
        jnp.dtype(jnp.bfloat16): half.BF16_BF16_F32,
        jnp.dtype(jnp.float16): half.F16_F16_F32,
    }[query_BSHD.dtype]
    with _for_this_gpu():
        gradients = _operations()[1](
            # Highest score and sum of weights: their logarithm and 1 mean the same.
            (rows.log_BHS, jnp.ones_like(rows.log_BHS)),
            rows.mixed_BSHW,
            rows.gradient_BSHW,
            query_BSHD,
            key_BSKD,
            value_BSKW,
            precision=(precision, precision),
            logits_dtype=jnp.dtype(jnp.float32),
            logits_scale=flash.scale,
            logits_soft_cap=_cap(flash),
            mask=_mask(flash, segments_BS, query_BSHD),
            bias=None,
            dropout_mask=None,
            dropout_rate=0.0,
            paging_info=None,
            q_indices=None,
            k_indices=None,
            normalize_output=True,
        )
    return gradients["q"], gradients["k"], gradients["v"]


def _mask(flash: Flash, segments_BS: jax.Array | None, query_BSHD: jax.Array) -> Any:
    """Returns what is visible as tokamax wants it, and no range where there is no limit."""
    from tokamax._src.ops.attention.base import Mask

    seen = seen_by(flash.band, segments_BS, query_BSHD)
    causal, packed = flash.band.ahead == 0, segments_BS is not None
    starts = packed or flash.band.back is not None
    stops = not causal and (packed or flash.band.ahead is not None)
    return Mask(
        k_start=seen.start_BS[:, None] if starts else None,
        k_end=seen.stop_BS[:, None] if stops else None,
        is_causal=causal,
    )


def _operations() -> tuple[Any, Any]:
    """Returns the operations forwards and backwards."""
    from tokamax._src.ops.attention import base, pallas_mosaic_gpu, pallas_mosaic_gpu_vjp

    if BACKEND == "xla":
        return base.DotProductAttention(), base.DotProductAttentionVjp()
    return (
        pallas_mosaic_gpu.PallasMosaicGpuFlashAttention(),
        pallas_mosaic_gpu_vjp.PallasMosaicGpuFlashAttentionVjp(),
    )


def _cap(flash: Flash) -> float | None:
    return flash.score_map.cap if isinstance(flash.score_map, SoftCap) else None


@contextmanager
def _for_this_gpu() -> Iterator[None]:
    """Lets tokamax see the GPU that is compiled for, and not the program's arguments.

    It asks JAX's default device for its kind; it parses the command line by absl where nobody did;
    and it warns wherever it takes a size of blocks that it did not try out.
    """
    from absl import flags

    if not flags.FLAGS.is_parsed():
        flags.FLAGS.mark_as_parsed()
    logger = logging.getLogger("absl")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with jax.default_device(current_device()):
            yield
    finally:
        logger.setLevel(level)
