"""The custom VJP of flash-style attention: save q, k, v, o and the logsumexp, recompute the rest.

An implementation brings a forward and a backward pass. Nothing quadratic in the sequence length is
saved between the two (FlashAttention, https://arxiv.org/abs/2205.14135).

B batch, S queries, T keys, H heads, K KV heads, D width of queries and keys, W width of values.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from dovetail.kernels.attention.op import OUTPUT_TAG, TOKEN_FIELDS, AttentionCall
from dovetail.kernels.score_maps import ScoreBias
from dovetail.parallel import tag


class Gradients(NamedTuple):
    """The gradients of a call; None where it has no such input (for a bias: no arrays)."""

    dq_BSHD: jax.Array
    dk_BTKD: jax.Array
    dv_BTKW: jax.Array
    dsinks_H: jax.Array | None = None
    dbias: ScoreBias | None = None


class FlashPasses(NamedTuple):
    """The two passes of an implementation; hashable, since it is static under `jax.custom_vjp`.

    Attributes:
        forward: maps (plan, call, ...) to the output o and its logsumexp lse.
        backward: maps (plan, call, ..., o, lse, do) to `Gradients`.
        plan: the static arguments of both, hashable.
    """

    forward: Callable[..., tuple[jax.Array, jax.Array]]
    backward: Callable[..., Gradients]
    plan: Any


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def flash_attention(passes: FlashPasses, call: AttentionCall, *integers: Any) -> jax.Array:
    """Computes attention by the two passes; integer inputs beside the call have no gradient."""
    return _forward(passes, call, *integers)[0]


def _forward(
    passes: FlashPasses, call: AttentionCall, *integers: Any
) -> tuple[jax.Array, tuple[Any, ...]]:
    o_BSHW, lse = passes.forward(passes.plan, call, *integers)
    # Output and logsumexp are saved for the backward pass. Both are tagged: a remat policy that
    # saves them spares it a second forward pass.
    o_BSHW, lse = tag(o_BSHW, OUTPUT_TAG), tag(lse, OUTPUT_TAG)
    return o_BSHW, (call, *integers, o_BSHW, lse)


def _backward(
    passes: FlashPasses, residuals: tuple[Any, ...], do_BSHW: jax.Array
) -> tuple[Any, ...]:
    call, *integers, _, _ = residuals
    dq, dk, dv, dsinks, dbias = passes.backward(passes.plan, *residuals, do_BSHW)
    if dbias is not None:
        dbias = jax.tree.map(lambda total, leaf: total.astype(leaf.dtype), dbias, call.score_bias)
    floats = call.without(*TOKEN_FIELDS)  # integers have no gradient
    gradients = floats.with_qkv(dq, dk, dv, sinks_H=dsinks, score_bias=dbias)
    return gradients, *(None for _ in integers)


flash_attention.defvjp(_forward, _backward)


class BackwardInputs(NamedTuple):
    """What the backward kernels read for each query, besides q, k and v.

    Attributes:
        o_BSHW: the output.
        do_BSHW: its gradient.
        lse_BHS: the logsumexp of the scores.
        delta_BHS: `sum(o * do)`, which equals the sum of p times dp.
    """

    o_BSHW: jax.Array
    do_BSHW: jax.Array
    lse_BHS: jax.Array
    delta_BHS: jax.Array


def backward_inputs(o_BSHW: jax.Array, do_BSHW: jax.Array, lse_BHS: jax.Array) -> BackwardInputs:
    """Computes delta, and returns the inputs of the backward kernels."""
    product_BSHW = o_BSHW.astype(jnp.float32) * do_BSHW.astype(jnp.float32)
    delta_BHS = product_BSHW.sum(axis=-1).swapaxes(1, 2)
    return BackwardInputs(o_BSHW, do_BSHW, lse_BHS, delta_BHS)
