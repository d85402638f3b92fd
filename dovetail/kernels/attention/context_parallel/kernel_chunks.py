"""Chunks of a ring by Pallas kernels over token ranges: our own on TPUs, those of `triton` on GPUs.

Splash cannot be used on TPUs: it gives no gradients for a subset of a row's keys.

B batch, S queries, T keys, H heads, K KV heads, D width of queries and keys, W width of values,
N tokens of all devices.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp

from dovetail.kernels.attention.context_parallel.chunks import (
    ChunkGradients,
    ChunkKernels,
    PartialOutput,
)
from dovetail.kernels.attention.context_parallel.layouts import RingLayout
from dovetail.kernels.attention.flash import BackwardInputs
from dovetail.kernels.attention.gpu import triton_kernels
from dovetail.kernels.attention.gpu.triton import arrays_refusal
from dovetail.kernels.attention.op import AttentionCall
from dovetail.kernels.attention.ranges import TokenRanges, kv_ranges, q_ranges
from dovetail.kernels.attention.shards import band_of, scores_refusal
from dovetail.kernels.attention.tpu import kernels as tpu_kernels
from dovetail.kernels.attention.tpu.splash import LANES, call_block_size
from dovetail.kernels.dispatch import implementation, is_interpreted

TPU_DTYPES = (jnp.bfloat16, jnp.float32)


class ChunkRanges(NamedTuple):
    """For each token, its key range and query range in the global sequence, and its index there."""

    keys: TokenRanges
    queries: TokenRanges
    index_1S: jax.Array


def _supports_tpu(call: AttentionCall, layout: RingLayout) -> str | None:
    dtypes = {str(array.dtype) for array in call.qkv}
    if call.q_BSHD.dtype not in TPU_DTYPES or len(dtypes) > 1:
        return f"it takes bfloat16 or float32, not {' and '.join(sorted(dtypes))}"
    return _refusal(call, layout, LANES)


@implementation("pallas", platforms=("tpu",), supports=_supports_tpu)
def pallas(call: AttentionCall, layout: RingLayout) -> ChunkKernels:
    """Returns the passes by the kernels for TPUs."""
    return TPUChunks(layout, is_interpreted())


def _supports_triton(call: AttentionCall, layout: RingLayout) -> str | None:
    return arrays_refusal(call) or _refusal(call, layout, triton_kernels.MAX_BLOCK)


@implementation("triton", platforms=("gpu",), supports=_supports_triton)
def triton(call: AttentionCall, layout: RingLayout) -> ChunkKernels:
    """Returns the passes by the Triton kernels."""
    return TritonChunks(layout, is_interpreted())


def _refusal(call: AttentionCall, layout: RingLayout, block: int) -> str | None:
    if layout.chunk % block:
        return (
            f"a ring's chunk of {layout.chunk} tokens, where each device has {layout.length}, is "
            f"no multiple of {block}"
        )
    return scores_refusal(call)


class RangedChunks(ChunkKernels):
    """The passes by kernels over token ranges: a module with `forward` and `backward`."""

    kernels: ClassVar[Any]

    @abstractmethod
    def options(self, call: AttentionCall) -> Any:
        """Returns the static arguments of the kernels."""

    def describe(self, call: AttentionCall) -> ChunkRanges:
        """Returns the ranges of a device's tokens; segment ids are all-gathered for them."""
        layout, band, segment_ids_BN = self.layout, band_of(call.mask), call.q_segment_ids_BS
        index_S = layout.index(jax.lax.axis_index(layout.axes))
        if segment_ids_BN is not None:
            segment_ids_BN = jax.lax.all_gather(segment_ids_BN, layout.axes, axis=1, tiled=True)
        shape = (call.q_BSHD.shape[0], layout.length * layout.devices)

        def own(array_BN: jax.Array) -> jax.Array:
            # A device has one or two runs of tokens, and slices are cheaper than a gather.
            starts = [index_S[at] for at in range(0, layout.length, layout.chunk)]
            runs = [jax.lax.dynamic_slice_in_dim(array_BN, at, layout.chunk, 1) for at in starts]
            return jnp.concatenate(runs, axis=1)

        ranges = [find(band, segment_ids_BN, shape) for find in (kv_ranges, q_ranges)]
        keys, queries = jax.tree.map(own, ranges)
        return ChunkRanges(keys, queries, index_S[None])

    def forward(
        self, call: AttentionCall, queries: ChunkRanges, keys: ChunkRanges
    ) -> PartialOutput:
        """Returns the output. Sinks are added once, after all chunks."""
        own_keys = _within(queries.keys, keys)
        output = self.kernels.forward(self.options(call), call.without("sinks_H"), own_keys)
        return PartialOutput(*output)

    def backward(
        self,
        call: AttentionCall,
        queries: ChunkRanges,
        keys: ChunkRanges,
        given: BackwardInputs,
    ) -> ChunkGradients:
        """Returns the gradients."""
        own_keys, own_queries = _within(queries.keys, keys), _within(keys.queries, queries)
        options = self.options(call)
        return ChunkGradients(*self.kernels.backward(options, call, own_keys, own_queries, given))


class TPUChunks(RangedChunks):
    """The passes by our kernels for TPUs."""

    kernels: ClassVar[Any] = tpu_kernels

    def options(self, call: AttentionCall) -> tpu_kernels.TPUOptions:
        """Returns options with a block that fits VMEM."""
        size = call_block_size(call)
        return tpu_kernels.TPUOptions(call.scale, call.score_map, size, self.interpret)


class TritonChunks(RangedChunks):
    """The passes by the Triton kernels."""

    kernels: ClassVar[Any] = triton_kernels

    def options(self, call: AttentionCall) -> triton_kernels.TritonOptions:
        """Returns options with float32 results: they are accumulated over chunks."""
        return triton_kernels.TritonOptions(call.scale, call.score_map, self.interpret, "float32")


def _within(ranges: TokenRanges, chunk: ChunkRanges) -> TokenRanges:
    """Returns the ranges clipped to a chunk, relative to its first token."""
    first, length = chunk.index_1S[0, 0], chunk.index_1S.shape[1]
    return TokenRanges(*(jnp.clip(array - first, 0, length).astype(jnp.int32) for array in ranges))
