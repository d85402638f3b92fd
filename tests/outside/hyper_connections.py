"""Hyper-connections: several residual streams with learned mixing (https://arxiv.org/abs/2409.19606).

N residual streams, beside the letters of all layers.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from dovetail.config import REQUIRED, ConfigOf, replace, wraps
from dovetail.features import feature
from dovetail.layers import (
    BaseResidual,
    Decoder,
    PreNorm,
    Residual,
    RMSNorm,
    TokenContext,
    TokenMap,
    constrain_residual,
)
from dovetail.module import Module, Normal, parameter


class HyperConnection(Module):
    """Reads a sublayer's input from all residual streams, mixes them, and writes to each."""

    class Config(Module.Config["HyperConnection"]):
        """The width is set by the parent; `base` is the residual connection of one stream."""

        width: int = REQUIRED
        num_streams: int = REQUIRED
        base: ConfigOf[Residual] = wraps(PreNorm.Config())
        stream_norm: ConfigOf[TokenMap] = RMSNorm.Config()

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        count = config.num_streams
        self.base = config.base.build(width=config.width)
        self.stream_norm = config.stream_norm.build(width=config.width)
        # Noise, so that the streams become different.
        noise = Normal.Config(standard_deviation=0.1)
        self.read = parameter((count,), (None,), noise, decays=False)
        self.write = parameter((count,), (None,), noise, decays=False)
        self.mix = parameter((count, count), (None, None), noise, decays=False)
        self.read_by_input = parameter((config.width,), ("embed",), noise, decays=False)

    def before(self, x_BSNE: jax.Array) -> jax.Array:
        """Returns the sublayer's input, a weighted mean of the streams."""
        scores_BSN = self.read + self.stream_norm(x_BSNE) @ self.read_by_input
        weights_BSN = jax.nn.softmax(scores_BSN, axis=-1)
        return self.base.before(jnp.einsum("bsn,bsne->bse", weights_BSN, x_BSNE))

    def after(self, x_BSNE: jax.Array, output_BSE: jax.Array) -> jax.Array:
        """Returns the mixed streams, each with a multiple of the sublayer's output added."""
        update_BSE = self.base.after(jnp.zeros_like(output_BSE), output_BSE)
        mixed_BSNE = x_BSNE + jnp.einsum("mn,bsme->bsne", self.mix, x_BSNE)
        return mixed_BSNE + (1 + self.write)[:, None] * update_BSE[:, :, None]


class ToStreams(Module):
    """Copies the embeddings into every residual stream."""

    class Config(Module.Config["ToStreams"]):
        width: int = REQUIRED
        num_streams: int = REQUIRED

    def __call__(self, x_BSE: jax.Array, context: TokenContext) -> jax.Array:
        return constrain_residual(jnp.repeat(x_BSE[:, :, None], self.config.num_streams, axis=2))


class FromStreams(Module):
    """Adds the residual streams."""

    class Config(Module.Config["FromStreams"]):
        width: int = REQUIRED

    def __call__(self, x_BSNE: jax.Array, context: TokenContext) -> jax.Array:
        return x_BSNE.sum(axis=2)


@feature(
    "hyper-connections",
    kind="stacks",
    needs={"dovetail.layers:BaseResidual": "there is no residual connection to widen"},
)
def hyper_connections(config: Any, num_streams: int = 4) -> Any:
    """Several residual streams in every decoder."""

    def widened(decoder: Any) -> Any:
        connection = HyperConnection.Config(num_streams=num_streams)
        return decoder.set(
            stack_input=ToStreams.Config(num_streams=num_streams),
            stack=replace(decoder.stack, BaseResidual, connection),
            stack_output=FromStreams.Config(),
        )

    return replace(config, Decoder, widened)
