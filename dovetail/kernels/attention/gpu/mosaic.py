"""Attention on Hopper GPUs: tokamax's Mosaic GPU kernel forward, our Triton kernels backward.

tokamax's forward kernel uses Hopper's asynchronous copies and matmuls, with warp specialization. It
takes ranges of keys, so packed segments need no dense mask, and blocks outside the ranges are
skipped. Its backward kernels (0.0.12) skip only by causality, and reduce GQA groups through memory;
so the gradients are those of `triton`. Both share the meaning of the output and the logsumexp.

tokamax's public API takes no ranges. So this calls its private modules, in tested versions only.

B batch, S queries, T keys (T = S here), H heads, K KV heads, D width of queries and keys, W width
of values.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from importlib import metadata
from typing import Any, Literal

import jax
import jax.numpy as jnp

from dovetail.kernels.attention.gpu.triton import call_ranges, run_with_gradients
from dovetail.kernels.attention.gpu.triton import supports as triton_supports
from dovetail.kernels.attention.gpu.triton_kernels import TritonOptions
from dovetail.kernels.attention.op import AttentionCall
from dovetail.kernels.attention.ranges import kv_ranges
from dovetail.kernels.attention.shards import band_of, score_map_refusal, soft_cap
from dovetail.kernels.dispatch import current_device, implementation

GENERATION = "9"
VERSIONS = ("0.0.12",)
PRECISIONS = {
    jnp.dtype(jnp.bfloat16): jax.lax.DotAlgorithmPreset.BF16_BF16_F32,
    jnp.dtype(jnp.float16): jax.lax.DotAlgorithmPreset.F16_F16_F32,
}
BACKEND: Literal["mosaic", "xla"] = "mosaic"
"""What tokamax computes with. "xla" runs anywhere, so that a test can compare."""


def _supports(call: AttentionCall) -> str | None:
    refusal = (_gpu_refusal() if BACKEND == "mosaic" else None) or _version_refusal()
    refusal = refusal or score_map_refusal(call)
    if refusal is not None:
        return refusal
    if call.q_BSHD.dtype not in PRECISIONS:
        return f"it takes bfloat16 or float16, not {call.q_BSHD.dtype}"
    return triton_supports(call)


def _gpu_refusal() -> str | None:
    device = current_device()
    if device is None:
        return "the kind of GPU is not known here"
    capability = str(getattr(device, "compute_capability", "unknown"))
    if capability.partition(".")[0] == GENERATION:
        return None
    return f"it is for GPUs of compute capability {GENERATION}, and this one has {capability}"


def _version_refusal() -> str | None:
    try:
        version = metadata.version("tokamax")
    except metadata.PackageNotFoundError:
        return "tokamax is not installed"
    if version in VERSIONS:
        return None
    return f"tokamax {version} is not tested, only {' and '.join(VERSIONS)}"


@implementation("mosaic", platforms=("gpu",), supports=_supports)
def mosaic(call: AttentionCall) -> jax.Array:
    """Computes attention by tokamax's kernel."""
    return run_with_gradients(_forward, call)


def _forward(_: TritonOptions, call: AttentionCall) -> tuple[jax.Array, jax.Array]:
    precision, sinks_H = PRECISIONS[call.q_BSHD.dtype], call.sinks_H
    with _target_gpu():
        o_BSHW, (m_BHS, l_BHS) = _operation()(
            *call.qkv,
            precision=(precision, precision),
            logits_scale=call.scale,
            logits_soft_cap=soft_cap(call),
            mask=_mask(call),
            return_residuals=True,
        )
    lse_BHS = m_BHS + jnp.log(l_BHS)
    if sinks_H is None:
        return o_BSHW, lse_BHS
    # Add the sinks to the denominator: update the logsumexp, and rescale the output.
    lse_with_sinks_BHS = jnp.logaddexp(lse_BHS, sinks_H.astype(jnp.float32)[:, None])
    alpha_BSH1 = jnp.exp(lse_BHS - lse_with_sinks_BHS).swapaxes(1, 2)[..., None]
    return (o_BSHW * alpha_BSH1).astype(o_BSHW.dtype), lse_with_sinks_BHS


def _mask(call: AttentionCall) -> Any:
    """Returns tokamax's mask, without a range where there is no limit."""
    from tokamax._src.ops.attention.base import Mask

    band, packed = band_of(call.mask), call.q_segment_ids_BS is not None
    ranges, causal = call_ranges(kv_ranges, call), band.ahead == 0
    starts = packed or band.back is not None
    stops = not causal and (packed or band.ahead is not None)
    return Mask(
        k_start=ranges.start_BS[:, None] if starts else None,
        k_end=ranges.stop_BS[:, None] if stops else None,
        is_causal=causal,
    )


def _operation() -> Any:
    from tokamax._src.ops.attention import base, pallas_mosaic_gpu

    if BACKEND == "xla":
        return base.DotProductAttention()
    return pallas_mosaic_gpu.PallasMosaicGpuFlashAttention()


@contextmanager
def _target_gpu() -> Iterator[None]:
    """Makes tokamax compile for the target GPU, and keeps it away from the command line.

    tokamax reads the kind of GPU from JAX's default device. It parses `sys.argv` by absl unless
    another library has, and warns about every block size that is not autotuned.
    """
    from absl import flags, logging

    if not flags.FLAGS.is_parsed():
        flags.FLAGS.mark_as_parsed()
    logging.get_absl_logger().addFilter(_is_not_autotuning)  # a filter is added only once
    with jax.default_device(current_device()):
        yield


def _is_not_autotuning(record: Any) -> bool:
    return not str(record.msg).startswith("Autotuning cache miss")
