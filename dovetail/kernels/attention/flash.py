"""The custom VJP of flash-style attention: save q, k, v, o and the logsumexp, recompute the rest.

An implementation brings a forward and a backward pass. Nothing quadratic in the sequence length is
saved between the two (FlashAttention, https://arxiv.org/abs/2205.14135).

B batch, S queries, H heads, W width of values.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from dovetail.kernels.attention.op import OUTPUT_TAG
from dovetail.parallel import tag


class FlashPasses(NamedTuple):
    """The two passes of an implementation; hashable, since it is static under `jax.custom_vjp`.

    Attributes:
        forward: maps (plan, q, k, v, ...) to the output o and its logsumexp lse.
        backward: maps (plan, q, k, v, ..., o, lse, do) to the gradients of all inputs: dq, dk, dv,
            and those of the sinks and of integer inputs (None).
        plan: the static arguments of both, hashable.
    """

    forward: Callable[..., tuple[jax.Array, jax.Array]]
    backward: Callable[..., tuple[Any, ...]]
    plan: Any


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def flash_attention(passes: FlashPasses, *inputs: Any) -> jax.Array:
    """Computes attention by the two passes, from q, k, v, and what else they take."""
    return _forward(passes, *inputs)[0]


def _forward(passes: FlashPasses, *inputs: Any) -> tuple[jax.Array, tuple[Any, ...]]:
    o_BSHW, lse = passes.forward(passes.plan, *inputs)
    # Output and logsumexp are saved for the backward pass. Both are tagged: a remat policy that
    # saves them spares it a second forward pass.
    o_BSHW, lse = tag(o_BSHW, OUTPUT_TAG), tag(lse, OUTPUT_TAG)
    return o_BSHW, (*inputs, o_BSHW, lse)


def _backward(
    passes: FlashPasses, residuals: tuple[Any, ...], do_BSHW: jax.Array
) -> tuple[Any, ...]:
    return passes.backward(passes.plan, *residuals, do_BSHW)


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
