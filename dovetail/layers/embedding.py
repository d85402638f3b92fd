"""Embedding: one vector a token, to read tokens in and to score them at the end."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from dovetail.config import REQUIRED, ConfigOf
from dovetail.kernels.lookup import lookup
from dovetail.layers.checks import require_positive
from dovetail.module import Initializer, Module, Normal, parameter


class Embedding(Module):
    """A table of shape (vocabulary, width)."""

    class Config(Module.Config["Embedding"]):
        """Sizes are set by the parent."""

        vocab_size: int = REQUIRED
        width: int = REQUIRED
        weight_init: ConfigOf[Initializer] = Normal.Config(standard_deviation=0.02)

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        require_positive(config, "vocab_size", "width")
        # No fans: a lookup is not a matrix product, and matrix optimizers leave it alone.
        self.weight = parameter(
            (config.vocab_size, config.width), ("vocab", "embed"), config.weight_init
        )

    def __call__(self, tokens_BS: jax.Array) -> jax.Array:
        """Looks tokens up: [B, S] to [B, S, E].

        A token beyond the vocabulary gives NaN: a wrong tokenizer must not train in silence.
        """
        return lookup(self.weight, tokens_BS)

    def scores(self, x_BSE: jax.Array) -> jax.Array:
        """Scores every token of the vocabulary, in float32: [..., E] to [..., V]."""
        return jnp.matmul(x_BSE, self.weight.T, preferred_element_type=jnp.float32)


class ScaledEmbedding(Embedding):
    """An embedding that multiplies what it looks up, and not what it scores (Gemma)."""

    class Config(Embedding.Config):
        """The factor; None means the root of the width."""

        factor: float | None = None

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self.factor = config.width**0.5 if config.factor is None else config.factor

    def __call__(self, tokens_BS: jax.Array) -> jax.Array:
        """Looks tokens up and scales them."""
        x_BSE = super().__call__(tokens_BS)
        # Rounded to the type of the vectors first, as those who trained such models did.
        return x_BSE * jnp.asarray(self.factor, x_BSE.dtype)
