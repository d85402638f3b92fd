"""Dispatch with a fixed capacity: each expert takes the same number of tokens of each row.

R rows of the batch, C capacity, beside the letters of this folder.
"""

from __future__ import annotations

import math
from typing import Any

import jax
import jax.numpy as jnp

from dovetail.config import Component, ConfigError
from dovetail.config import Config as AnyConfig
from dovetail.layers.moe.dispatch import Dispatch, DispatchOutput, combine
from dovetail.layers.moe.dropless import Dropless
from dovetail.layers.moe.router import Routing
from dovetail.module import vmap
from dovetail.parallel import constrain


class FixedCapacity(Component):
    """The base of dispatches with a fixed capacity per expert and row.

    The output of a token depends on the other tokens of its row, so decoding uses `Dropless`.
    """

    class Config(Component.Config["FixedCapacity"]):
        """The capacity factor: a multiple of the tokens per expert under even load."""

        factor: float = 1.0

        def for_decoding(self) -> AnyConfig[Dispatch]:
            """Returns the dropless dispatch: the other tokens of the row are not known."""
            return Dropless.Config()

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        if not config.factor > 0:
            raise ConfigError(f"{config.locate('factor')}: expected above 0, got {config.factor}.")
        self.factor = config.factor

    def capacity(self, length: int, routing: Routing) -> int:
        """Returns how many tokens of a row an expert takes, at most all of them."""
        choices, num_experts = routing.experts_BSK.shape[-1], routing.counts_X.shape[0]
        return min(length, math.ceil(self.factor * length * choices / num_experts))


def run_each(expert: Any, x_XRCE: jax.Array) -> jax.Array:
    """Runs all experts, each on its own C tokens of each row R."""
    axes = ("expert", "batch", None, None)
    return constrain(vmap(expert, expert, constrain(x_XRCE, *axes)), *axes)


class Capacity(FixedCapacity):
    """Capacity-based dispatch with dropped tokens (GShard, https://arxiv.org/abs/2006.16668).

    An expert takes up to C tokens of each row; beyond that, its output is dropped from the token's
    sum. First choices have priority over second ones, and earlier tokens over later ones. Shapes
    are static, so experts on several devices have equal work.
    """

    class Config(FixedCapacity.Config):
        """Some slack, since the load is never even."""

        factor: float = 1.25

    def __call__(self, expert: Any, x_BSE: jax.Array, routing: Routing) -> DispatchOutput:
        """Maps [B, S, E] to [B, S, E]."""
        *lead, length, width = x_BSE.shape
        choices, num_experts = routing.experts_BSK.shape[-1], routing.counts_X.shape[0]
        rows, capacity = math.prod(lead), self.capacity(length, routing)
        slot_BSK = _slots(routing.experts_BSK.reshape(rows, length, choices), num_experts, capacity)
        x_BNE = jnp.repeat(x_BSE.reshape(rows, length, width), choices, axis=1)
        slot_BN, batch_B1 = slot_BSK.reshape(rows, -1), jnp.arange(rows)[:, None]
        num_slots = num_experts * capacity
        buffer = jnp.zeros((rows, num_slots, width), x_BSE.dtype)
        buffer = buffer.at[batch_B1, slot_BN].set(x_BNE, mode="drop")
        x_XBCE = buffer.reshape(rows, num_experts, capacity, width).swapaxes(0, 1)
        result = run_each(expert, x_XBCE).swapaxes(0, 1).reshape(rows, num_slots, width)
        result = result.at[batch_B1, slot_BN].get(mode="fill", fill_value=0)
        result_BSKE = result.reshape(*lead, length, choices, width)
        output_BSE = combine(result_BSKE, routing.weights_BSK).astype(x_BSE.dtype)
        dropped = jnp.mean(slot_BSK == num_slots)
        return DispatchOutput(output_BSE, {"dropped": dropped})


def _slots(experts_BSK: jax.Array, num_experts: int, capacity: int) -> jax.Array:
    """Returns the slot of each choice; one past the last slot where it is dropped."""
    rows, length, choices = experts_BSK.shape
    # All first choices, then all second ones: [B, K * S].
    ordered = experts_BSK.swapaxes(1, 2).reshape(rows, -1)
    is_expert = ordered[..., None] == jnp.arange(num_experts)
    before = jnp.cumsum(is_expert, axis=1, dtype=jnp.int32) - 1
    position = jnp.take_along_axis(before, ordered[..., None], axis=-1)[..., 0]
    inside = ordered * capacity + position
    # Over capacity, the token is dropped: its slot is out of range.
    slot = jnp.where(position < capacity, inside, num_experts * capacity)
    return slot.reshape(rows, choices, length).swapaxes(1, 2)


class ExpertChoice(FixedCapacity):
    """Expert choice: each expert selects its top C tokens of each row (https://arxiv.org/abs/2202.09368).

    The load is even by construction. A token may be selected by many experts or by none, depending
    on the other tokens of its row, later ones included. Outputs are weighted by the router scores;
    the router's own selection and weights are not used. Decoding uses token choice (`Dropless`).
    """

    def __call__(self, expert: Any, x_BSE: jax.Array, routing: Routing) -> DispatchOutput:
        """Maps [B, S, E] to [B, S, E]."""
        *lead, length, width = x_BSE.shape
        rows, num_experts = math.prod(lead), routing.counts_X.shape[0]
        scores_RSX = routing.scores_BSX.reshape(rows, length, num_experts)
        weights_RXC, tokens_RXC = jax.lax.top_k(
            scores_RSX.swapaxes(1, 2), self.capacity(length, routing)
        )
        row_R11 = jnp.arange(rows)[:, None, None]
        x_RXCE = x_BSE.reshape(rows, length, width)[row_R11, tokens_RXC]
        result_XRCE = run_each(expert, x_RXCE.swapaxes(0, 1))
        weighted = result_XRCE.swapaxes(0, 1).astype(jnp.float32) * weights_RXC[..., None]
        output_RSE = jnp.zeros((rows, length, width), jnp.float32)
        output_RSE = output_RSE.at[row_R11, tokens_RXC].add(weighted)
        taken_RS = jnp.zeros((rows, length), bool).at[row_R11, tokens_RXC].set(True)
        summaries = {"untaken": 1.0 - taken_RS.mean()}
        return DispatchOutput(output_RSE.reshape(x_BSE.shape).astype(x_BSE.dtype), summaries)
