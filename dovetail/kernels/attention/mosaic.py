"""Attention on Hopper GPUs: forwards by tokamax's kernel for Mosaic GPU, backwards by Triton's.

tokamax's forward kernel uses what is new in those GPUs: asynchronous copies and products, by warps
with different tasks. What is visible it takes as ranges of keys, so packed segments cost no mask,
and blocks outside of them are skipped. Its backward kernels (0.0.12) skip by causality alone, and
add up shared heads in memory, so gradients are those of `triton`: to both, the output and the
logarithm of the sum of weights mean the same.

tokamax's front door knows no ranges, so what is called here lies behind it, in versions that were
tried.

B batch, S sequence, H heads, K key-value heads, D width of queries and keys, W of values.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import metadata
from typing import Any, Literal

import jax
import jax.numpy as jnp

from dovetail.kernels.attention.device_parts import band_of, on_parts
from dovetail.kernels.attention.flash import Flash, attend
from dovetail.kernels.attention.masks import Mask
from dovetail.kernels.attention.op import attention_op
from dovetail.kernels.attention.ranges import seen_by
from dovetail.kernels.attention.triton import backward
from dovetail.kernels.attention.triton import supports as triton_supports
from dovetail.kernels.registry import current_device, is_interpreted
from dovetail.kernels.score_maps import ScoreMap, SoftCap

GENERATION = "9"
VERSIONS = ("0.0.12",)
PRECISIONS = {
    jnp.dtype(jnp.bfloat16): jax.lax.DotAlgorithmPreset.BF16_BF16_F32,
    jnp.dtype(jnp.float16): jax.lax.DotAlgorithmPreset.F16_F16_F32,
}
BACKEND: Literal["mosaic", "xla"] = "mosaic"
"""What tokamax computes by; its plain operations run anywhere, so that a test can compare."""


def _supports(
    query_BSHD: jax.Array,
    key_BTKD: jax.Array,
    value_BTKW: jax.Array,
    *,
    score_map: ScoreMap | None = None,
    **call: Any,
) -> str | None:
    missing = (_unknown_gpu() if BACKEND == "mosaic" else None) or _unknown_version()
    if missing is not None:
        return missing
    if score_map is not None and not isinstance(score_map, SoftCap):
        return f"it knows no score map but SoftCap, and this is {score_map}"
    if query_BSHD.dtype not in PRECISIONS:
        return f"it takes bfloat16 or float16, not {query_BSHD.dtype}"
    return triton_supports(query_BSHD, key_BTKD, value_BTKW, **call)


def _unknown_gpu() -> str | None:
    device = current_device()
    if device is None:
        return "which GPU it would be is not known here"
    capability = str(getattr(device, "compute_capability", "unknown"))
    if capability.partition(".")[0] == GENERATION:
        return None
    return f"it is for GPUs of compute capability {GENERATION}, and this one has {capability}"


def _unknown_version() -> str | None:
    try:
        version = metadata.version("tokamax")
    except metadata.PackageNotFoundError:
        return "tokamax is not installed"
    if version in VERSIONS:
        return None
    return f"tokamax {version} was not tried, only {' and '.join(VERSIONS)}"


@attention_op.register("mosaic", platforms=("gpu",), supports=_supports, before="triton")
def mosaic(
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
    """Computes attention by tokamax's kernel; see `attention` for the arguments."""
    flash = Flash(_forward, backward, band_of(mask), scale, score_map, is_interpreted())
    part = functools.partial(attend, flash)
    return on_parts(part, query_BSHD, key_BTKD, value_BTKW, query_segments_BS, sinks_H)


def _forward(
    flash: Flash,
    query_BSHD: jax.Array,
    key_BSKD: jax.Array,
    value_BSKW: jax.Array,
    segments_BS: jax.Array | None,
    sinks_H: jax.Array | None,
) -> tuple[jax.Array, jax.Array]:
    precision = PRECISIONS[query_BSHD.dtype]
    with _for_this_gpu():
        mixed_BSHW, (highest_BHS, total_BHS) = _operation()(
            query_BSHD,
            key_BSKD,
            value_BSKW,
            precision=(precision, precision),
            logits_scale=flash.scale,
            logits_soft_cap=flash.score_map.cap if isinstance(flash.score_map, SoftCap) else None,
            mask=_mask(flash, segments_BS, query_BSHD),
            return_residuals=True,
        )
    log_BHS = highest_BHS + jnp.log(total_BHS)
    if sinks_H is None:
        return mixed_BSHW, log_BHS
    # A sink takes its share of what was given to the keys.
    with_sinks_BHS = jnp.logaddexp(log_BHS, sinks_H.astype(jnp.float32)[:, None])
    left_BSH1 = jnp.exp(log_BHS - with_sinks_BHS).swapaxes(1, 2)[..., None]
    return (mixed_BSHW * left_BSH1).astype(mixed_BSHW.dtype), with_sinks_BHS


def _mask(flash: Flash, segments_BS: jax.Array | None, query_BSHD: jax.Array) -> Any:
    """Returns what is visible as tokamax wants it, and no range where there is no limit."""
    from tokamax._src.ops.attention.base import Mask

    seen = seen_by(flash.band, segments_BS, query_BSHD.shape)
    causal, packed = flash.band.ahead == 0, segments_BS is not None
    starts = packed or flash.band.back is not None
    stops = not causal and (packed or flash.band.ahead is not None)
    return Mask(
        k_start=seen.start_BS[:, None] if starts else None,
        k_end=seen.stop_BS[:, None] if stops else None,
        is_causal=causal,
    )


def _operation() -> Any:
    from tokamax._src.ops.attention import base, pallas_mosaic_gpu

    if BACKEND == "xla":
        return base.DotProductAttention()
    return pallas_mosaic_gpu.PallasMosaicGpuFlashAttention()


@contextmanager
def _for_this_gpu() -> Iterator[None]:
    """Lets tokamax see the GPU that is compiled for, and not the program's arguments.

    It asks JAX's default device for its kind; it parses the command line by absl where nobody did;
    and it warns wherever it takes a size of blocks that it did not try out.
    """
    from absl import flags, logging

    if not flags.FLAGS.is_parsed():
        flags.FLAGS.mark_as_parsed()
    logging.get_absl_logger().addFilter(_is_news)  # which is added once
    with jax.default_device(current_device()):
        yield


def _is_news(record: Any) -> bool:
    return not str(record.msg).startswith("Autotuning cache miss")
