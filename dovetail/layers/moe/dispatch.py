"""Dispatch: brings tokens to their experts and back. Dropless, or with a capacity.

A dispatch is no module: what it runs is the mixture's own child, in the mixture's frame.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp

from dovetail.config import Config as AnyConfig
from dovetail.config import ConfigError, Part
from dovetail.kernels.grouped_matmul import grouped_matmul
from dovetail.layers.moe.router import Routing
from dovetail.module import grouped, vmap
from dovetail.parallel import constrain


class Dispatched(NamedTuple):
    """The experts' results, weighed and added up for each token, and figures to be logged."""

    mixed_BSE: jax.Array
    summaries: dict[str, Any]


class Dispatch(Protocol):
    """Runs experts on the tokens that were routed to them."""

    def __call__(self, expert: Any, x_BSE: jax.Array, routing: Routing, /) -> Dispatched:
        """Maps [B, S, E] to [B, S, E]; `expert` is a repeated child of the module that calls."""
        ...


class Dropless(Part):
    """Every token reaches every expert that it chose, however uneven that is.

    Tokens are sorted by expert, and each matrix product is one grouped product over all experts.
    """

    def __call__(self, expert: Any, x_BSE: jax.Array, routing: Routing) -> Dispatched:
        """Maps [B, S, E] to [B, S, E]."""
        *lead, width = x_BSE.shape
        choices = routing.experts_BSK.shape[-1]
        order_N = jnp.argsort(routing.experts_BSK.reshape(-1), stable=True)
        x_NE = x_BSE.reshape(-1, width)[order_N // choices]
        # As many rows as the batch has tokens, times the choices: so they split over devices as
        # the batch does, though which token stands where is another matter now.
        rows = _as_tokens(x_NE.reshape(*lead[:-1], lead[-1] * choices, width))
        result = grouped(expert, expert, rows, group_sizes=routing.counts_X, product=grouped_matmul)
        back_N = jnp.argsort(order_N)
        result_BSKE = result.reshape(-1, width)[back_N].reshape(*lead, choices, width)
        return Dispatched(_mixed(result_BSKE, routing).astype(x_BSE.dtype), {})


class FixedRoom(Part):
    """What dispatches have in common that give every expert room for as many tokens of a row.

    What a token gets then depends on other tokens of its row, so tokens that are generated one
    after the other are dispatched by `Dropless`.
    """

    class Config(Part.Config["FixedRoom"]):
        """The room of an expert, as a multiple of what it gets when the load is even."""

        factor: float = 1.0

        def for_decoding(self) -> AnyConfig[Dispatch]:
            """Returns what decodes: the other tokens of the row are not there to be compared."""
            return Dropless.Config()

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        if not config.factor > 0:
            raise ConfigError(f"{config.locate('factor')}: expected above 0, got {config.factor}.")
        self.factor = config.factor

    def room(self, length: int, routing: Routing) -> int:
        """Returns how many tokens of a row an expert takes: each token once at the most."""
        choices, num_experts = routing.experts_BSK.shape[-1], routing.counts_X.shape[0]
        return min(length, math.ceil(self.factor * length * choices / num_experts))


def run_each(expert: Any, x_XRCE: jax.Array) -> jax.Array:
    """Runs experts side by side, each on its own tokens: C of each row R."""
    axes = ("expert", "batch", None, None)
    return constrain(vmap(expert, expert, constrain(x_XRCE, *axes)), *axes)


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
        mixed = _mixed(result.reshape(*lead, length, choices, width), routing)
        dropped = jnp.mean(slot_BSK == places)
        return Dispatched(mixed.astype(x_BSE.dtype), {"dropped": dropped})


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


def _mixed(result_BSKE: jax.Array, routing: Routing) -> jax.Array:
    """Adds up the results of a token's experts, in float32."""
    weighed = result_BSKE.astype(jnp.float32) * routing.weights_BSK[..., None]
    return weighed.sum(axis=-2)


def _as_tokens(x: jax.Array) -> jax.Array:
    return constrain(x, "batch", "sequence", "embed") if x.ndim == 3 else x
