"""Chunks: attention of one range of queries to one range of keys, the unit of work of a ring.

An implementation of `chunk_op` is a forward and a backward pass. Neither knows of the ring. The
forward pass returns a partial output with its logsumexp, by which partial outputs are merged. The
backward pass returns gradients from the logsumexp of all chunks together.

B batch, S queries, T keys, H heads, K KV heads, D width of queries and keys, W width of values.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from dovetail.kernels.attention.context_parallel.layouts import RingLayout
from dovetail.kernels.attention.flash import BackwardInputs
from dovetail.kernels.attention.op import AttentionCall
from dovetail.kernels.attention.xla.scores import LOW
from dovetail.kernels.dispatch import Op
from dovetail.kernels.score_maps import ScoreBias

chunk_op = Op("attention_chunk")
"""From the whole call and the layout to `ChunkKernels`."""


@dataclass(frozen=True)
class ChunkKernels(ABC):
    """How the chunks of a ring are computed; hashable, since it is static.

    Attributes:
        layout: which tokens a device has.
        interpret: whether kernels run in interpret mode.
    """

    layout: RingLayout
    interpret: bool = False

    @abstractmethod
    def describe(self, call: AttentionCall) -> Any:
        """Returns arrays with what a pass needs to know of a device's tokens in the layout.

        Each has the tokens along axis 1. They travel around the ring with the keys.
        """

    @abstractmethod
    def forward(self, call: AttentionCall, queries: Any, keys: Any) -> PartialOutput:
        """Returns the output of a chunk, from its call and its described tokens."""

    @abstractmethod
    def backward(
        self, call: AttentionCall, queries: Any, keys: Any, given: BackwardInputs
    ) -> ChunkGradients:
        """Returns the gradients."""


class ChunkGradients(NamedTuple):
    """What one chunk adds to the gradients, in float32; dbias is None without arrays in a bias."""

    dq_BSHD: jax.Array
    dk_BTKD: jax.Array
    dv_BTKW: jax.Array
    dbias: ScoreBias | None = None


class PartialOutput(NamedTuple):
    """The output of attention to some of the keys, and the logsumexp of their scores."""

    o_BSHW: jax.Array
    lse_BHS: jax.Array


def init_partial_output(call: AttentionCall) -> PartialOutput:
    """Returns the output of attention to no keys."""
    batch, queries, heads, _ = call.q_BSHD.shape
    o_BSHW = jnp.zeros((batch, queries, heads, call.v_BTKW.shape[3]))
    return PartialOutput(o_BSHW, jnp.full((batch, heads, queries), LOW))


def merge_partial_outputs(
    call: AttentionCall, one: PartialOutput, other: PartialOutput
) -> PartialOutput:
    """Returns the output of attention to the keys of both: the log-sum-exp merge."""
    if call.score_activation is not None:  # no denominator: outputs just add up
        return PartialOutput(one.o_BSHW + other.o_BSHW, one.lse_BHS)
    lse_BHS = jnp.logaddexp(one.lse_BHS, other.lse_BHS)
    o_BSHW = _rescale(one, lse_BHS) + _rescale(other, lse_BHS)
    return PartialOutput(o_BSHW, lse_BHS)


def add_sinks(call: AttentionCall, output: PartialOutput) -> PartialOutput:
    """Adds the sink of each head to the softmax's denominator."""
    if call.sinks_H is None or call.score_activation is not None:
        return output
    lse_BHS = jnp.logaddexp(output.lse_BHS, call.sinks_H.astype(jnp.float32)[:, None])
    return PartialOutput(_rescale(output, lse_BHS), lse_BHS)


def _rescale(output: PartialOutput, lse_BHS: jax.Array) -> jax.Array:
    """Rescales an output from its own logsumexp to that of more keys."""
    alpha_BHS = jnp.exp(output.lse_BHS - lse_BHS)
    return output.o_BSHW * alpha_BHS.swapaxes(1, 2)[..., None]
