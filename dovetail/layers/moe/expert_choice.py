"""Expert choice: experts choose tokens, instead of tokens experts.

R rows of the batch, beside the letters of this folder.
"""

from __future__ import annotations

import math
from typing import Any

import jax
import jax.numpy as jnp

from dovetail.layers.moe.dispatch import Dispatched
from dovetail.layers.moe.fixed_room import FixedRoom, run_each
from dovetail.layers.moe.router import Routing


class ExpertChoice(FixedRoom):
    """Each expert takes those tokens of each row that score highest for it, the same number each.

    So every expert has equal work and no choice is dropped, but a token may be taken by many
    experts or by none, and whether it is depends on the other tokens of its row, later ones too
    (https://arxiv.org/abs/2202.09368). What a token gets from an expert counts by the score; the
    router's own choice and weights are not used. In generation tokens choose (`Dropless`).
    """

    def __call__(self, expert: Any, x_BSE: jax.Array, routing: Routing) -> Dispatched:
        """Maps [B, S, E] to [B, S, E]."""
        *lead, length, width = x_BSE.shape
        rows, num_experts = math.prod(lead), routing.counts_X.shape[0]
        scores_RSX = routing.scores_BSX.reshape(rows, length, num_experts)
        weights_RXC, tokens_RXC = jax.lax.top_k(
            scores_RSX.swapaxes(1, 2), self.room(length, routing)
        )
        row_R11 = jnp.arange(rows)[:, None, None]
        x_RXCE = x_BSE.reshape(rows, length, width)[row_R11, tokens_RXC]
        result_XRCE = run_each(expert, x_RXCE.swapaxes(0, 1))
        weighed = result_XRCE.swapaxes(0, 1).astype(jnp.float32) * weights_RXC[..., None]
        mixed_RSE = jnp.zeros((rows, length, width), jnp.float32)
        mixed_RSE = mixed_RSE.at[row_R11, tokens_RXC].add(weighed)
        taken_RS = jnp.zeros((rows, length), bool).at[row_R11, tokens_RXC].set(True)
        summaries = {"untaken": 1.0 - taken_RS.mean()}
        return Dispatched(mixed_RSE.reshape(x_BSE.shape).astype(x_BSE.dtype), summaries)
