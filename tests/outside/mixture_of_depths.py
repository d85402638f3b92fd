"""Mixture-of-depths: a router decides for each token whether a layer runs on it.

As in https://arxiv.org/abs/2404.02258, but a token takes part where its score is positive, not
where it is among the best of its row: so the decision is causal.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from dovetail.config import REQUIRED, ConfigOf, replace, wraps
from dovetail.features import feature
from dovetail.layers import (
    Decoder,
    Layer,
    Linear,
    TokenContext,
    TokenMap,
    TransformerBlock,
    rearrange,
)
from dovetail.module import Module


class MixtureOfDepths(Module):
    """A layer that some tokens skip: their keys and values are not attended to either."""

    class Config(Module.Config["MixtureOfDepths"]):
        """The width is set by the parent."""

        width: int = REQUIRED
        layer: ConfigOf[Layer] = wraps(TransformerBlock.Config())
        router: ConfigOf[TokenMap] = Linear.Config()

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self.layer = config.layer.build(width=config.width)
        self.router = config.router.build(in_features=config.width, in_axis="embed", out_features=1)

    def __call__(self, x_BSE: jax.Array, context: TokenContext) -> jax.Array:
        score_BS1 = self.router(x_BSE)
        takes_BS1 = score_BS1 > 0
        self.add_summary("taken", takes_BS1.mean())
        y_BSE = self.layer(x_BSE, context.hide(~takes_BS1[..., 0]))
        gated_BSE = x_BSE + jax.nn.sigmoid(score_BS1) * (y_BSE - x_BSE)
        return jnp.where(takes_BS1, gated_BSE, x_BSE)


@feature(
    "mixture-of-depths",
    kind="stacks",
    needs={"dovetail.layers:Decoder": "there is no stack of layers to skip"},
)
def mixture_of_depths(config: Any, every: int = 2) -> Any:
    """Lets tokens skip every `every`-th layer of every decoder."""

    def wrapped(layer: Any) -> Any:
        return MixtureOfDepths.Config(layer=layer)

    return replace(config, Decoder, lambda old: old.set(stack=rearrange(old.stack, wrapped, every)))
