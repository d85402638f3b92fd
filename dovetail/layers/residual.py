"""Residual connections: pre-norm, post-norm, sandwich norm, and norm on the sublayer's output."""

from __future__ import annotations

from typing import Any, TypeVar

import jax

from dovetail.config import REQUIRED, Config, ConfigOf, replace
from dovetail.layers.dropout import Dropout
from dovetail.layers.interfaces import TokenMap
from dovetail.layers.norms import BaseNorm, HasFinalNorm, RMSNorm
from dovetail.module import Module
from dovetail.parallel import constrain


class BaseResidual(Module):
    """The base of residual connections: a norm, and dropout on the sublayer's output."""

    class Config(Module.Config["BaseResidual"]):
        """The width is set by the parent."""

        width: int = REQUIRED
        norm: ConfigOf[TokenMap] = RMSNorm.Config()
        dropout: ConfigOf[TokenMap] = Dropout.Config()

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self.norm = config.norm.build(width=config.width)
        self.dropout = config.dropout.build()


class PreNorm(BaseResidual):
    """Norm on the sublayer's input; the residual stream itself is never normalized."""

    def before(self, x_BSE: jax.Array) -> jax.Array:
        """Normalizes the sublayer's input."""
        return self.norm(x_BSE)

    def after(self, x_BSE: jax.Array, output_BSE: jax.Array) -> jax.Array:
        """Adds the sublayer's output to the residual stream."""
        return x_BSE + self.dropout(output_BSE)


class PostNorm(BaseResidual):
    """Norm after the sum, as in the original transformer."""

    def before(self, x_BSE: jax.Array) -> jax.Array:
        """Returns the residual stream."""
        return x_BSE

    def after(self, x_BSE: jax.Array, output_BSE: jax.Array) -> jax.Array:
        """Normalizes the sum."""
        return self.norm(x_BSE + self.dropout(output_BSE))


class SandwichNorm(BaseResidual):
    """Norms on the sublayer's input and on its output (Gemma 2)."""

    class Config(BaseResidual.Config):
        """`output_norm` is the norm of the sublayer's output."""

        output_norm: ConfigOf[TokenMap] = RMSNorm.Config()

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self.output_norm = config.output_norm.build(width=config.width)

    def before(self, x_BSE: jax.Array) -> jax.Array:
        """Normalizes the sublayer's input."""
        return self.norm(x_BSE)

    def after(self, x_BSE: jax.Array, output_BSE: jax.Array) -> jax.Array:
        """Adds the normalized output to the residual stream."""
        return x_BSE + self.dropout(self.output_norm(output_BSE))


class OutputNorm(BaseResidual):
    """Norm on the sublayer's output only (OLMo 2)."""

    def before(self, x_BSE: jax.Array) -> jax.Array:
        """Returns the residual stream."""
        return x_BSE

    def after(self, x_BSE: jax.Array, output_BSE: jax.Array) -> jax.Array:
        """Adds the normalized output to the residual stream."""
        return x_BSE + self.dropout(self.norm(output_BSE))


def constrain_residual(x: Any) -> Any:
    """Constrains the sharding of the residual stream [B, S, ..., E], or of each of several."""

    def one(stream: jax.Array) -> jax.Array:
        between = (None,) * (stream.ndim - 3)
        return constrain(stream, "batch", "residual_sequence", *between, "embed")

    return jax.tree.map(one, x)


C = TypeVar("C", bound=Config[Any])


def with_residual_norm(config: C, norm: Config[Any]) -> C:
    """Returns the config with another norm in every residual connection, and as the final norm.

    Norms inside a sequence mixer or a linear map (QK-norm, the norm of a latent) stay.
    """

    def with_final_norm(owner: Any) -> Any:
        return owner.set(norm=replace(owner.norm, BaseNorm, norm))

    config = replace(config, BaseResidual, lambda residual: replace(residual, BaseNorm, norm))
    return replace(config, HasFinalNorm, with_final_norm)
