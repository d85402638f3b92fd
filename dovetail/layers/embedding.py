"""Token embedding, which also computes logits where it is tied to the output head."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from dovetail.config import REQUIRED, ConfigOf
from dovetail.kernels.embedding_lookup import embedding_lookup
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
        # No fans: a lookup is not a matmul, so matrix optimizers leave the table alone.
        self.weight = parameter(
            (config.vocab_size, config.width), ("vocab", "embed"), config.weight_init
        )

    def __call__(self, tokens_BS: jax.Array) -> jax.Array:
        """Embeds tokens: [B, S] to [B, S, E].

        A token id outside the vocabulary gives NaN, so a wrong tokenizer does not train silently.
        """
        return embedding_lookup(self.weight, tokens_BS)

    def logits(self, x_BSE: jax.Array) -> jax.Array:
        """Computes logits in float32: [..., E] to [..., V]."""
        return jnp.matmul(x_BSE, self.weight.T, preferred_element_type=jnp.float32)


class ScaledEmbedding(Embedding):
    """An embedding with scaled vectors; the logits are not scaled (Gemma)."""

    class Config(Embedding.Config):
        """The factor; None means sqrt(width)."""

        factor: float | None = None

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self.factor = config.width**0.5 if config.factor is None else config.factor

    def __call__(self, tokens_BS: jax.Array) -> jax.Array:
        """Embeds tokens and scales the vectors."""
        x_BSE = super().__call__(tokens_BS)
        # The factor is cast to the vectors' dtype first, as in the reference implementation.
        return x_BSE * jnp.asarray(self.factor, x_BSE.dtype)
