"""Chunks of a ring by Pallas kernels over token ranges: our own on TPUs, those of `triton` on GPUs.

Splash cannot be used on TPUs: it gives no gradients for a subset of a row's keys.

B batch, S queries, T keys, H heads, K KV heads, D width of queries and keys, W width of values,
N tokens of all devices.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from dovetail.kernels.attention.context_parallel.chunks import ChunkKernels, PartialOutput
from dovetail.kernels.attention.context_parallel.layouts import RingLayout
from dovetail.kernels.attention.flash import BackwardInputs
from dovetail.kernels.attention.gpu import triton_kernels
from dovetail.kernels.attention.gpu.triton import arrays_refusal
from dovetail.kernels.attention.ranges import TokenRanges, kv_ranges, q_ranges
from dovetail.kernels.attention.shards import band_of, spec_refusal
from dovetail.kernels.attention.tpu import kernels as tpu_kernels
from dovetail.kernels.attention.tpu.splash import LANES, block_size
from dovetail.kernels.attention.xla.scores import AttentionSpec
from dovetail.kernels.registry import implementation, is_interpreted

TPU_DTYPES = (jnp.bfloat16, jnp.float32)


class ChunkRanges(NamedTuple):
    """For each token, its key range and query range in the whole sequence, and its index there."""

    keys: TokenRanges
    queries: TokenRanges
    index_1S: jax.Array


def _supports_tpu(
    q_BSHD: jax.Array,
    k_BTKD: jax.Array,
    v_BTKW: jax.Array,
    *,
    spec: AttentionSpec,
    layout: RingLayout,
) -> str | None:
    dtypes = {str(array.dtype) for array in (q_BSHD, k_BTKD, v_BTKW)}
    if q_BSHD.dtype not in TPU_DTYPES or len(dtypes) > 1:
        return f"it takes bfloat16 or float32, not {' and '.join(sorted(dtypes))}"
    return _refusal(spec, layout, LANES)


@implementation("pallas", platforms=("tpu",), supports=_supports_tpu)
def pallas(*_: Any, spec: AttentionSpec, layout: RingLayout) -> ChunkKernels:
    """Returns the passes by the kernels for TPUs."""
    return ChunkKernels(_describe, _tpu_forward, _tpu_backward, spec, layout, is_interpreted())


def _supports_triton(
    q_BSHD: jax.Array,
    k_BTKD: jax.Array,
    v_BTKW: jax.Array,
    *,
    spec: AttentionSpec,
    layout: RingLayout,
) -> str | None:
    refusal = arrays_refusal(q_BSHD, k_BTKD, v_BTKW)
    return refusal or _refusal(spec, layout, triton_kernels.MAX_BLOCK)


@implementation("triton", platforms=("gpu",), supports=_supports_triton)
def triton(*_: Any, spec: AttentionSpec, layout: RingLayout) -> ChunkKernels:
    """Returns the passes by the Triton kernels."""
    passes = (_describe, _triton_forward, _triton_backward)
    return ChunkKernels(*passes, spec, layout, is_interpreted())


def _refusal(spec: AttentionSpec, layout: RingLayout, block: int) -> str | None:
    if layout.chunk % block:
        return (
            f"a ring's chunk of {layout.chunk} tokens, where each device has {layout.length}, is "
            f"no multiple of {block}"
        )
    return spec_refusal(spec.mask, spec.score_bias, spec.score_activation)


def _describe(
    chunks: ChunkKernels, positions_BS: jax.Array, segment_ids_BS: jax.Array | None
) -> ChunkRanges:
    """Returns the ranges of a device's tokens; segment ids are all-gathered for them."""
    layout, band = chunks.layout, band_of(chunks.spec.mask)
    index_S = layout.index(jax.lax.axis_index(layout.axes))
    segment_ids_BN = None
    if segment_ids_BS is not None:
        segment_ids_BN = jax.lax.all_gather(segment_ids_BS, layout.axes, axis=1, tiled=True)
    shape = (positions_BS.shape[0], layout.length * layout.devices)

    def own(array_BN: jax.Array) -> jax.Array:
        # A device has one or two runs of tokens, and slices are cheaper than a gather.
        starts = [index_S[at] for at in range(0, layout.length, layout.chunk)]
        runs = [jax.lax.dynamic_slice_in_dim(array_BN, at, layout.chunk, 1) for at in starts]
        return jnp.concatenate(runs, axis=1)

    ranges = [find(band, segment_ids_BN, shape) for find in (kv_ranges, q_ranges)]
    keys, queries = jax.tree.map(own, ranges)
    return ChunkRanges(keys, queries, index_S[None])


def _within(ranges: TokenRanges, chunk: ChunkRanges) -> TokenRanges:
    """Returns the ranges clipped to a chunk, relative to its first token."""
    first, length = chunk.index_1S[0, 0], chunk.index_1S.shape[1]
    return TokenRanges(*(jnp.clip(array - first, 0, length).astype(jnp.int32) for array in ranges))


def _tpu_forward(
    chunks: ChunkKernels,
    q_BSHD: jax.Array,
    k_BTKD: jax.Array,
    v_BTKW: jax.Array,
    queries: ChunkRanges,
    keys: ChunkRanges,
) -> PartialOutput:
    qkv = (q_BSHD, k_BTKD, v_BTKW)
    ranges = _within(queries.keys, keys)
    return PartialOutput(*tpu_kernels.forward(_tpu_options(chunks, *qkv), *qkv, ranges))


def _tpu_backward(
    chunks: ChunkKernels,
    q_BSHD: jax.Array,
    k_BTKD: jax.Array,
    v_BTKW: jax.Array,
    queries: ChunkRanges,
    keys: ChunkRanges,
    given: BackwardInputs,
) -> tuple[jax.Array, jax.Array, jax.Array]:
    qkv = (q_BSHD, k_BTKD, v_BTKW)
    options = _tpu_options(chunks, *qkv)
    own_keys, own_queries = _within(queries.keys, keys), _within(keys.queries, queries)
    dq_BSHD = tpu_kernels.backward_dq(options, *qkv, own_keys, given)
    return dq_BSHD, *tpu_kernels.backward_dkv(options, *qkv, own_keys, own_queries, given)


def _tpu_options(
    chunks: ChunkKernels, q_BSHD: jax.Array, k_BTKD: jax.Array, v_BTKW: jax.Array
) -> tpu_kernels.TPUOptions:
    spec, width = chunks.spec, max(q_BSHD.shape[3], v_BTKW.shape[3])
    size = block_size(q_BSHD.shape[1], width, q_BSHD.dtype.itemsize)
    return tpu_kernels.TPUOptions(spec.scale, spec.score_map, size, chunks.interpret)


def _triton_forward(
    chunks: ChunkKernels,
    q_BSHD: jax.Array,
    k_BTKD: jax.Array,
    v_BTKW: jax.Array,
    queries: ChunkRanges,
    keys: ChunkRanges,
) -> PartialOutput:
    ranges, qkv = _within(queries.keys, keys), (q_BSHD, k_BTKD, v_BTKW)
    return PartialOutput(*triton_kernels.forward(_triton_options(chunks), *qkv, ranges, None))


def _triton_backward(
    chunks: ChunkKernels,
    q_BSHD: jax.Array,
    k_BTKD: jax.Array,
    v_BTKW: jax.Array,
    queries: ChunkRanges,
    keys: ChunkRanges,
    given: BackwardInputs,
) -> tuple[jax.Array, jax.Array, jax.Array]:
    options, qkv = _triton_options(chunks), (q_BSHD, k_BTKD, v_BTKW)
    own_keys, own_queries = _within(queries.keys, keys), _within(keys.queries, queries)
    dq_BSHD = triton_kernels.backward_dq(options, *qkv, own_keys, given)
    return dq_BSHD, *triton_kernels.backward_dkv(options, *qkv, own_queries, given)


def _triton_options(chunks: ChunkKernels) -> triton_kernels.TritonOptions:
    """Returns options with float32 results: they are accumulated over chunks."""
    spec = chunks.spec
    return triton_kernels.TritonOptions(spec.scale, spec.score_map, chunks.interpret, "float32")
