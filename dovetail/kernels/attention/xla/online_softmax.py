"""Online softmax: attention over keys that arrive a block at a time.

The recurrence is that of https://arxiv.org/abs/1805.02867 and FlashAttention. It carries a running
max m, a running sum l and an unnormalized output o, and rescales them as the max grows.

B batch, S queries, T keys, H heads, K KV heads, G query heads per KV head, D width of queries and
keys, W width of values. S and T count the tokens of the block.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp

from dovetail.kernels.attention.op import AttentionCall
from dovetail.kernels.attention.xla.scores import LOW, block_scores, weighted_values


class SoftmaxState(NamedTuple):
    """The running max, the running sum and the unnormalized output, all in float32."""

    m_BKGS: jax.Array
    l_BKGS: jax.Array
    o_BKGSW: jax.Array


def init_softmax_state(rows: tuple[int, ...], width: int) -> SoftmaxState:
    """Returns the state of queries [B, K, G, S] before any key."""
    return SoftmaxState(jnp.full(rows, LOW), jnp.zeros(rows), jnp.zeros((*rows, width)))


def online_softmax_update(
    call: AttentionCall,
    allowed_B1T1S: jax.Array,
    state: SoftmaxState,
    q_BKGSD: jax.Array,
    k_BKTD: jax.Array,
    v_BKTW: jax.Array,
) -> SoftmaxState:
    """Returns the state after one more block of keys."""
    s_BKTGS, _ = block_scores(call, q_BKGSD, k_BKTD)
    if call.score_activation is not None:  # no denominator: outputs of blocks just add up
        p_BKTGS = jnp.where(allowed_B1T1S, call.score_activation(s_BKTGS), 0)
        o_BKGSW = weighted_values(p_BKTGS, v_BKTW).reshape(state.o_BKGSW.shape)
        return state._replace(o_BKGSW=state.o_BKGSW + o_BKGSW)
    s_BKTGS = jnp.where(allowed_B1T1S, s_BKTGS, LOW)
    m_BKGS = jnp.maximum(state.m_BKGS, s_BKTGS.max(axis=2))
    p_BKTGS = jnp.where(allowed_B1T1S, jnp.exp(s_BKTGS - m_BKGS[:, :, None]), 0)
    o_BKGSW = weighted_values(p_BKTGS, v_BKTW).reshape(state.o_BKGSW.shape)
    # Rescale the running sum and the output from the old running max to the new one.
    alpha_BKGS = jnp.exp(state.m_BKGS - m_BKGS)
    return SoftmaxState(
        m_BKGS,
        alpha_BKGS * state.l_BKGS + p_BKTGS.sum(axis=2),
        alpha_BKGS[..., None] * state.o_BKGSW + o_BKGSW,
    )


def finalize(
    call: AttentionCall, state: SoftmaxState, sinks_KG1: jax.Array | None
) -> tuple[jax.Array, jax.Array]:
    """Returns the normalized output, and the logsumexp of the scores."""
    if call.score_activation is not None:
        return state.o_BKGSW, jnp.zeros_like(state.m_BKGS)
    m_BKGS, l_BKGS, o_BKGSW = state
    if sinks_KG1 is not None:  # a sink is one more key, with a value of 0
        m_BKGS = jnp.maximum(m_BKGS, sinks_KG1)
        alpha_BKGS = jnp.exp(state.m_BKGS - m_BKGS)
        l_BKGS = alpha_BKGS * l_BKGS + jnp.exp(sinks_KG1 - m_BKGS)
        o_BKGSW = alpha_BKGS[..., None] * o_BKGSW
    # A query that attends to no key has l = 0 and p = 0, so its output is 0.
    l_BKGS = jnp.where(l_BKGS == 0, 1, l_BKGS)
    return o_BKGSW / l_BKGS[..., None], m_BKGS + jnp.log(l_BKGS)
