"""Prompt tuning: learned vectors instead of the first tokens (https://arxiv.org/abs/2104.08691)."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from dovetail.config import REQUIRED, replace
from dovetail.features import feature
from dovetail.layers import Decoder, TokenContext
from dovetail.module import Module, Normal, parameter


class SoftPrompt(Module):
    """Replaces the embeddings at the first positions of each document by learned vectors."""

    class Config(Module.Config["SoftPrompt"]):
        """The width is set by the parent; `length` is the number of vectors."""

        width: int = REQUIRED
        length: int = REQUIRED

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        noise = Normal.Config(standard_deviation=0.02)
        self.vectors = parameter((config.length, config.width), (None, "embed"), noise)

    def __call__(self, x_BSE: jax.Array, context: TokenContext) -> jax.Array:
        length = len(self.vectors)
        vectors_BSE = self.vectors[jnp.minimum(context.positions_BS, length - 1)]
        is_soft_BS1 = (context.positions_BS < length)[:, :, None]
        return jnp.where(is_soft_BS1, vectors_BSE.astype(x_BSE.dtype), x_BSE)


@feature(
    "soft-prompt",
    kind="fine-tuning",
    needs={"dovetail.layers:Decoder": "there is no decoder to put it in front of"},
)
def soft_prompt(config: Any, length: int = 4) -> Any:
    """Learned vectors instead of the first tokens, in every decoder."""
    before = SoftPrompt.Config(length=length)
    return replace(config, Decoder, lambda decoder: decoder.set(stack_input=before))
