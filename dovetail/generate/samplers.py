"""Samplers: from the scores of all tokens to the next token.

`Sampling` treats logits in this order: temperature, then top-k, then top-p. Each filter sees the
distribution that the one before it left, renormalised. Where scores are equal, the token with the
lower id counts as the better one, for `Greedy` too.
"""

from __future__ import annotations

import math
from typing import Protocol, runtime_checkable

import jax
import jax.numpy as jnp

from dovetail.config import ConfigError, Part

_TINY = float(jnp.finfo(jnp.float32).tiny)


@runtime_checkable
class Sampler(Protocol):
    """Chooses the next token of each row."""

    def __call__(self, logits_BV: jax.Array, keys_B: jax.Array, /) -> jax.Array:
        """Returns tokens [B] (int32); a row may use its own logits and its own key alone."""
        ...


class Greedy(Part):
    """Takes the likeliest token."""

    def __call__(self, logits_BV: jax.Array, keys_B: jax.Array) -> jax.Array:
        """Returns the token with the highest score."""
        return jnp.argmax(logits_BV, axis=-1).astype(jnp.int32)


class Sampling(Part):
    """Draws from the distribution, sharpened by a temperature and cut to its likeliest tokens."""

    class Config(Part.Config["Sampling"]):
        """How daring to be.

        The temperature divides the logits: below 1 is more careful, above 1 more daring. `top_k`
        keeps the k likeliest tokens, `top_p` the smallest set of likeliest tokens whose
        probabilities reach p; None keeps all.
        """

        temperature: float = 1.0
        top_k: int | None = None
        top_p: float | None = None

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        _check(config)
        self.temperature, self.top_k = config.temperature, config.top_k
        # All of the mass means all tokens; a rounded sum would drop the rarest ones.
        self.top_p = None if config.top_p == 1.0 else config.top_p

    def __call__(self, logits_BV: jax.Array, keys_B: jax.Array) -> jax.Array:
        """Draws one token a row."""
        scores_BK, tokens_BK = self.candidates(logits_BV)
        choice_B = jax.vmap(jax.random.categorical)(keys_B, scores_BK).astype(jnp.int32)
        if tokens_BK is None:
            return choice_B
        return jnp.take_along_axis(tokens_BK, choice_B[:, None], axis=1)[:, 0]

    def candidates(self, logits_BV: jax.Array) -> tuple[jax.Array, jax.Array | None]:
        """Returns the scores of the tokens to draw from, and which tokens they are.

        Scores of minus infinity are never drawn. None for the tokens means all, by their ids.
        """
        # The highest score is set to 0 first, so that no temperature can make scores overflow.
        logits_BV = logits_BV.astype(jnp.float32)
        logits_BV = logits_BV - jnp.max(logits_BV, axis=-1, keepdims=True)
        logits_BV = logits_BV / max(self.temperature, _TINY)
        if self.top_k is None and self.top_p is None:
            return logits_BV, None
        size = logits_BV.shape[-1]
        scores_BK, tokens_BK = jax.lax.top_k(logits_BV, min(self.top_k or size, size))
        if self.top_p is not None:
            scores_BK = _keep_top_p(scores_BK, self.top_p)
        return scores_BK, tokens_BK


def _keep_top_p(scores_BK: jax.Array, top_p: float) -> jax.Array:
    """Masks all but the smallest set whose mass reaches p; the scores come in falling order."""
    # A token is needed while those before it have not reached p; so the first one always stays.
    reached_BK = jnp.cumsum(jax.nn.softmax(scores_BK, axis=-1), axis=-1)
    before_BK = jnp.pad(reached_BK[:, :-1], ((0, 0), (1, 0)))
    return jnp.where(before_BK < top_p, scores_BK, -jnp.inf)


def _check(config: Sampling.Config) -> None:
    if not 0.0 < config.temperature < math.inf:
        raise ConfigError(
            f"{config.locate('temperature')}: expected a finite number above 0, got "
            f"{config.temperature}. For the likeliest token at every step, use Greedy."
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
