"""Decode attention in XLA operations: the reference, and on every platform the only one so far.

On CPUs nothing here is faster. On TPUs and GPUs a fused kernel would be, so there this is slow.
"""

from __future__ import annotations

import jax

from dovetail.kernels.attention.op import FEW_QUERIES, AttentionCall, attention_op
from dovetail.kernels.attention.xla import reference
from dovetail.kernels.attention.xla.blockwise import is_slow
from dovetail.kernels.dispatch import implementation


@implementation("reference", slow=is_slow)
def decode_reference(call: AttentionCall) -> jax.Array:
    """Gathers keys and values if they are paged, and computes with all scores in memory."""
    call = call.contiguous()
    # Many queries are a chunk of a prompt: all of their scores may not fit.
    attend = reference.reference if call.q_BSHD.shape[1] <= FEW_QUERIES else attention_op
    o_BSHW: jax.Array = attend(call)
    return o_BSHW
