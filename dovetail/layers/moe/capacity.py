"""Dispatch with a capacity: an expert takes a fixed number of tokens, and drops the rest."""

from __future__ import annotations

import math
from typing import Any

import jax
import jax.numpy as jnp

from dovetail.layers.moe.dispatch import Dispatched, mixed
from dovetail.layers.moe.fixed_room import FixedRoom, run_each
from dovetail.layers.moe.router import Routing


class Capacity(FixedRoom):
    """Each expert takes a fixed number of tokens of each row of the batch; the rest is dropped.

    A dropped choice adds nothing to its token. First choices come before second ones, and earlier
    tokens before later ones. The shapes are fixed, so experts on several devices get equal work
    (GShard, https://arxiv.org/abs/2006.16668).
    """

    class Config(FixedRoom.Config):
        """Some room to spare, since the load is never even."""

        factor: float = 1.25

    def __call__(self, expert: Any, x_BSE: jax.Array, routing: Routing) -> Dispatched:
        """Maps [B, S, E] to [B, S, E]."""
        *lead, length, width = x_BSE.shape
        choices, num_experts = routing.experts_BSK.shape[-1], routing.counts_X.shape[0]
        rows, capacity = math.prod(lead), self.room(length, routing)
        slot_BSK = _slots(routing.experts_BSK.reshape(rows, length, choices), num_experts, capacity)
        x_BNE = jnp.repeat(x_BSE.reshape(rows, length, width), choices, axis=1)
        slot_BN, batch_B1 = slot_BSK.reshape(rows, -1), jnp.arange(rows)[:, None]
        places = num_experts * capacity
        buffer = jnp.zeros((rows, places, width), x_BSE.dtype)
        buffer = buffer.at[batch_B1, slot_BN].set(x_BNE, mode="drop")
        x_XBCE = buffer.reshape(rows, num_experts, capacity, width).swapaxes(0, 1)
        result = run_each(expert, x_XBCE).swapaxes(0, 1).reshape(rows, places, width)
        result = result.at[batch_B1, slot_BN].get(mode="fill", fill_value=0)
        result_BSKE = result.reshape(*lead, length, choices, width)
        mixed_BSE = mixed(result_BSKE, routing.weights_BSK).astype(x_BSE.dtype)
        dropped = jnp.mean(slot_BSK == places)
        return Dispatched(mixed_BSE, {"dropped": dropped})


def _slots(experts_BSK: jax.Array, num_experts: int, capacity: int) -> jax.Array:
    """Returns the place of each choice among all places; one past the end where it is dropped."""
    rows, length, choices = experts_BSK.shape
    # All first choices, then all second ones: [B, K * S].
    ordered = experts_BSK.swapaxes(1, 2).reshape(rows, -1)
    is_expert = ordered[..., None] == jnp.arange(num_experts)
    before = jnp.cumsum(is_expert, axis=1, dtype=jnp.int32) - 1
    position = jnp.take_along_axis(before, ordered[..., None], axis=-1)[..., 0]
    inside = ordered * capacity + position
    slot = jnp.where(position < capacity, inside, num_experts * capacity)
    return slot.reshape(rows, choices, length).swapaxes(1, 2)
