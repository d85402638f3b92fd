"""Balance without a loss: a bias on the scores that experts are chosen by, moved after each batch.

It is a variable, not a parameter: no gradient reaches it, and the weights of the chosen experts do
not see it (https://arxiv.org/abs/2408.15664).
"""

from __future__ import annotations

from typing import Protocol

import jax
import jax.numpy as jnp

from dovetail.config import REQUIRED, ConfigError
from dovetail.module import Module, variable


class SelectionBias(Protocol):
    """Changes the scores for selection only, and learns from the load that results."""

    def __call__(self, scores_BSX: jax.Array, /) -> jax.Array:
        """Returns the scores by which experts are chosen."""
        ...

    def learn(self, counts_X: jax.Array, /) -> None:
        """Is told, in training, how many choices fell on each expert."""
        ...


class NoBias(Module):
    """Chooses by the scores as they are."""

    class Config(Module.Config["NoBias"]):
        """Set by the router."""

        num_experts: int = REQUIRED

    def __call__(self, scores_BSX: jax.Array) -> jax.Array:
        """Returns what came in."""
        return scores_BSX

    def learn(self, counts_X: jax.Array) -> None:
        """Learns nothing."""


class LossFreeBias(Module):
    """Raises the bias of experts with less than the mean load by a fixed step, lowers the others.

    With micro-batches it moves after each of them.
    """

    class Config(Module.Config["LossFreeBias"]):
        """The number of experts is set by the router; `rate` is the size of a step."""

        num_experts: int = REQUIRED
        rate: float = 1e-3

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        if config.rate < 0:
            raise ConfigError(f"{config.locate('rate')}: expected 0 or more, got {config.rate}.")
        self.rate = config.rate
        self.bias = variable((config.num_experts,), (None,))

    def __call__(self, scores_BSX: jax.Array) -> jax.Array:
        """Adds the bias."""
        return scores_BSX + self.bias

    def learn(self, counts_X: jax.Array) -> None:
        """Moves the bias against the load."""
        load_X = counts_X.astype(jnp.float32)
        self.bias = self.bias + self.rate * jnp.sign(load_X.mean() - load_X)
