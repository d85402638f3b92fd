"""Transformer blocks: a sequence mixer and a feed-forward layer with residual connections."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax

from dovetail.config import REQUIRED, ConfigError, ConfigOf
from dovetail.layers.attention.attention import Attention
from dovetail.layers.context import TokenContext
from dovetail.layers.feed_forward import FeedForward
from dovetail.layers.interfaces import Residual, SequenceMixer, TokenMap
from dovetail.layers.residual import PreNorm, constrain_residual
from dovetail.module import Module


def run_sublayer(sublayer: Callable[..., Any], x_BSE: jax.Array, *context: TokenContext) -> Any:
    """Runs a sublayer, whose output has the shape of its input.

    Raises:
        ConfigError: if the shapes differ, for example without an output projection.
    """
    output_BSE = sublayer(x_BSE, *context)
    if (shape := getattr(output_BSE, "shape", None)) != x_BSE.shape:
        got = f"the shape {shape}" if shape is not None else f"a {type(output_BSE).__name__}"
        raise ConfigError(
            f"{type(sublayer).__name__}.__call__ returned {got}, expected the shape of its input, "
            f"{x_BSE.shape}."
        )
    return output_BSE


class TransformerBlock(Module):
    """Attention, then feed-forward."""

    class Config(Module.Config["TransformerBlock"]):
        """The width is set by the parent."""

        width: int = REQUIRED
        attention: ConfigOf[SequenceMixer] = Attention.Config()
        attention_residual: ConfigOf[Residual] = PreNorm.Config()
        feed_forward: ConfigOf[TokenMap] = FeedForward.Config()
        feed_forward_residual: ConfigOf[Residual] = PreNorm.Config()

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        width = config.width
        self.attention = config.attention.build(width=width)
        self.attention_residual = config.attention_residual.build(width=width)
        self.feed_forward = config.feed_forward.build(width=width)
        self.feed_forward_residual = config.feed_forward_residual.build(width=width)

    def __call__(self, x: Any, context: TokenContext) -> Any:
        """Maps the residual stream [B, S, E] to itself; its residual connections may hold more."""
        output_BSE = run_sublayer(self.attention, self.attention_residual.before(x), context)
        x = self.attention_residual.after(x, output_BSE)
        output_BSE = run_sublayer(self.feed_forward, self.feed_forward_residual.before(x))
        x = self.feed_forward_residual.after(x, output_BSE)
        return constrain_residual(x)


class ParallelBlock(Module):
    """Attention and feed-forward in parallel, with one residual connection around both.

    As in GPT-J and PaLM (https://arxiv.org/abs/2204.02311): one norm per block instead of two, and
    the two sublayers do not wait for each other.
    """

    class Config(Module.Config["ParallelBlock"]):
        """The width is set by the parent; the residual connection is around both sublayers."""

        width: int = REQUIRED
        attention: ConfigOf[SequenceMixer] = Attention.Config()
        attention_residual: ConfigOf[Residual] = PreNorm.Config()
        feed_forward: ConfigOf[TokenMap] = FeedForward.Config()

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        width = config.width
        self.attention = config.attention.build(width=width)
        self.attention_residual = config.attention_residual.build(width=width)
        self.feed_forward = config.feed_forward.build(width=width)

    def __call__(self, x: Any, context: TokenContext) -> Any:
        """Maps the residual stream [B, S, E] to itself; its residual connections may hold more."""
        input_BSE = self.attention_residual.before(x)
        output_BSE = run_sublayer(self.attention, input_BSE, context)
        output_BSE += run_sublayer(self.feed_forward, input_BSE)
        x = self.attention_residual.after(x, output_BSE)
        return constrain_residual(x)
