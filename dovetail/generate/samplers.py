"""Samplers: choose the next token from logits.

`Sampling` applies temperature, then top-k, then top-p. Each filter renormalizes the distribution
that the previous one left. Ties go to the lower token id, in `Greedy` too.
"""

from __future__ import annotations

import math
from typing import Protocol, runtime_checkable

import jax
import jax.numpy as jnp

from dovetail.config import Component, ConfigError

_TINY = float(jnp.finfo(jnp.float32).tiny)


@runtime_checkable
class Sampler(Protocol):
    """Chooses the next token of each row."""

    def __call__(self, logits_BV: jax.Array, keys_B: jax.Array, /) -> jax.Array:
        """Returns tokens [B] (int32). A row may only use its own logits and its own key."""
        ...


class Greedy(Component):
    """Chooses the most likely token."""

    def __call__(self, logits_BV: jax.Array, keys_B: jax.Array) -> jax.Array:
        """Returns the argmax of the logits."""
        return jnp.argmax(logits_BV, axis=-1).astype(jnp.int32)


class Sampling(Component):
    """Samples from the distribution, with temperature, top-k and top-p."""

    class Config(Component.Config["Sampling"]):
        """Temperature and filters; None disables a filter.

        The logits are divided by the temperature. `top_k` keeps the k most likely tokens. `top_p`
        keeps the smallest set of most likely tokens whose probability is at least p.
        """

        temperature: float = 1.0
        top_k: int | None = None
        top_p: float | None = None

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        _check(config)
        self.temperature, self.top_k = config.temperature, config.top_k
        # 1.0 means all tokens; a rounded cumulative sum would drop the rarest ones.
        self.top_p = None if config.top_p == 1.0 else config.top_p

    def __call__(self, logits_BV: jax.Array, keys_B: jax.Array) -> jax.Array:
        """Samples one token per row."""
        logits_BK, tokens_BK = self.candidates(logits_BV)
        index_B = jax.vmap(jax.random.categorical)(keys_B, logits_BK).astype(jnp.int32)
        if tokens_BK is None:
            return index_B
        return jnp.take_along_axis(tokens_BK, index_B[:, None], axis=1)[:, 0]

    def candidates(self, logits_BV: jax.Array) -> tuple[jax.Array, jax.Array | None]:
        """Returns the filtered logits [B, K] and their token ids, or None if K is the vocabulary.

        Logits of minus infinity are never sampled.
        """
        # The largest logit is shifted to 0, so that no temperature overflows.
        logits_BV = logits_BV.astype(jnp.float32)
        logits_BV = logits_BV - jnp.max(logits_BV, axis=-1, keepdims=True)
        logits_BV = logits_BV / max(self.temperature, _TINY)
        if self.top_k is None and self.top_p is None:
            return logits_BV, None
        size = logits_BV.shape[-1]
        logits_BK, tokens_BK = jax.lax.top_k(logits_BV, min(self.top_k or size, size))
        if self.top_p is not None:
            logits_BK = _keep_top_p(logits_BK, self.top_p)
        return logits_BK, tokens_BK


def _keep_top_p(logits_BK: jax.Array, top_p: float) -> jax.Array:
    """Masks all but the smallest set whose probability reaches p; logits are descending."""
    # A token stays while the cumulative probability before it is below p, so the first one stays.
    cumulative_BK = jnp.cumsum(jax.nn.softmax(logits_BK, axis=-1), axis=-1)
    before_BK = jnp.pad(cumulative_BK[:, :-1], ((0, 0), (1, 0)))
    return jnp.where(before_BK < top_p, logits_BK, -jnp.inf)


def _check(config: Sampling.Config) -> None:
    if not 0.0 < config.temperature < math.inf:
        raise ConfigError(
            f"{config.locate('temperature')}: expected a finite number above 0, got "
            f"{config.temperature}. For greedy decoding, use Greedy."
        )
    if config.top_k is not None and config.top_k < 1:
        raise ConfigError(
            f"{config.locate('top_k')}: expected 1 or more, or None to keep all tokens, "
            f"got {config.top_k}."
        )
    if config.top_p is not None and not 0.0 < config.top_p <= 1.0:
        raise ConfigError(
            f"{config.locate('top_p')}: expected more than 0 and at most 1, or None to keep all "
            f"tokens, got {config.top_p}."
        )
