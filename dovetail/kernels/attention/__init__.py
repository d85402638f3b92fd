"""Attention: its ops, masks and score maps, and the implementations in order."""

from dovetail.config import register_function
from dovetail.kernels.attention.context_parallel import kernel_chunks, ring, ulysses, xla_chunks
from dovetail.kernels.attention.context_parallel.chunks import chunk_op
from dovetail.kernels.attention.gpu import cudnn, mosaic, triton
from dovetail.kernels.attention.masks import (
    Band,
    Both,
    Causal,
    Either,
    Full,
    Mask,
    Prefix,
    SlidingWindow,
)
from dovetail.kernels.attention.op import (
    AttentionCall,
    attention,
    attention_op,
    decode_attention_op,
)
from dovetail.kernels.attention.paged import gather_blocks, paged_positions, paged_segment_ids
from dovetail.kernels.attention.tpu import splash
from dovetail.kernels.attention.xla import blockwise, decode, reference
from dovetail.kernels.score_maps import ScoreBias, ScoreMap, SoftCap

# Tried in this order: the first that supports a call runs it.
attention_op.implementations = (
    splash.splash,
    cudnn.cudnn,
    mosaic.mosaic,
    triton.triton,
    ulysses.ulysses,
    ring.ring,
    blockwise.blockwise,
    reference.reference,
)
decode_attention_op.implementations = (decode.decode_reference,)
# What `ring` computes at a time: a chunk of queries with a chunk of keys.
chunk_op.implementations = (kernel_chunks.pallas, kernel_chunks.triton, xla_chunks.reference)

for _component in (Both, Causal, Either, Full, Prefix, SlidingWindow, SoftCap):
    register_function(f"{__name__}:{_component.__name__}")  # so that config text may name it

__all__ = [
    "AttentionCall",
    "Band",
    "Both",
    "Causal",
    "Either",
    "Full",
    "Mask",
    "Prefix",
    "ScoreBias",
    "ScoreMap",
    "SlidingWindow",
    "SoftCap",
    "attention",
    "attention_op",
    "decode_attention_op",
    "gather_blocks",
    "paged_positions",
    "paged_segment_ids",
]
