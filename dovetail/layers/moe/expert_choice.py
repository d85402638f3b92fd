"""Expert choice: experts choose tokens, instead of tokens experts.

R rows of the batch, beside the letters of this folder.
"""

from __future__ import annotations

import math
from typing import Any

import jax
import jax.numpy as jnp

from dovetail.config import Config as AnyConfig
from dovetail.config import ConfigError, Part
from dovetail.layers.moe.dispatch import Dispatch, Dispatched, Dropless
from dovetail.layers.moe.router import Routing
from dovetail.module import vmap
from dovetail.parallel import constrain


class ExpertChoice(Part):
    """Each expert takes those tokens of each row that score highest for it, the same number each.

    So every expert has equal work and no choice is dropped, but a token may be taken by many
    experts or by none, and whether it is depends on the other tokens of its row, later ones too
    (https://arxiv.org/abs/2202.09368). What a token gets from an expert counts by the score; the
    router's own choice and weights are not used. In generation tokens choose (`Dropless`).
    """

    class Config(Part.Config["ExpertChoice"]):
        """How many tokens an expert takes, as a multiple of what makes `top_k` experts a token."""

        factor: float = 1.0

        def for_decoding(self) -> AnyConfig[Dispatch]:
            """Returns what decodes: the other tokens of the row are not there to be compared."""
            return Dropless.Config()

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        if not config.factor > 0:
            raise ConfigError(f"{config.locate('factor')}: expected above 0, got {config.factor}.")
        self.factor = config.factor

    def __call__(self, expert: Any, x_BSE: jax.Array, routing: Routing) -> Dispatched:
        """Maps [B, S, E] to [B, S, E]."""
        *lead, length, width = x_BSE.shape
        choices, num_experts = routing.experts_BSK.shape[-1], routing.counts_X.shape[0]
        capacity = min(length, math.ceil(self.factor * length * choices / num_experts))
        rows = math.prod(lead)
        scores_RSX = routing.scores_BSX.reshape(rows, length, num_experts)
        weights_RXC, tokens_RXC = jax.lax.top_k(scores_RSX.swapaxes(1, 2), capacity)
        row_R11 = jnp.arange(rows)[:, None, None]
        x_RXCE = x_BSE.reshape(rows, length, width)[row_R11, tokens_RXC]
        x_XRCE = constrain(x_RXCE.swapaxes(0, 1), "expert", "batch", None, None)
        result_XRCE = constrain(vmap(expert, expert, x_XRCE), "expert", "batch", None, None)
        weighed = result_XRCE.swapaxes(0, 1).astype(jnp.float32) * weights_RXC[..., None]
        mixed_RSE = jnp.zeros((rows, length, width), jnp.float32)
        mixed_RSE = mixed_RSE.at[row_R11, tokens_RXC].add(weighed)
        taken_RS = jnp.zeros((rows, length), bool).at[row_R11, tokens_RXC].set(True)
        summaries = {"untaken": 1.0 - taken_RS.mean()}
        return Dispatched(mixed_RSE.reshape(x_BSE.shape).astype(x_BSE.dtype), summaries)
