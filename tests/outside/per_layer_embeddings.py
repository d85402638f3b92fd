"""Per-layer token embeddings: each layer adds a gated embedding of the token, as in Gemma 3n.

P width of the per-layer embedding, beside the letters of all layers.
"""

from __future__ import annotations

from typing import Any

import jax

from dovetail.config import REQUIRED, ConfigOf, replace, wraps
from dovetail.features import feature
from dovetail.layers import (
    Decoder,
    Embedding,
    Layer,
    Linear,
    TokenContext,
    TokenMap,
    TransformerBlock,
    Vocabulary,
    rearrange,
)
from dovetail.module import Module


class PerLayerEmbedding(Module):
    """Adds an embedding of the token, gated by the residual stream, after a layer."""

    class Config(Module.Config["PerLayerEmbedding"]):
        """The width is set by the parent."""

        width: int = REQUIRED
        rows: int = REQUIRED
        token_width: int = 8
        layer: ConfigOf[Layer] = wraps(TransformerBlock.Config())
        tokens: ConfigOf[Vocabulary] = Embedding.Config()
        gate: ConfigOf[TokenMap] = Linear.Config()
        output: ConfigOf[TokenMap] = Linear.Config()

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        width, inner = config.width, config.token_width
        self.layer = config.layer.build(width=width)
        self.tokens = config.tokens.build(vocab_size=config.rows, width=inner)
        self.gate = config.gate.build(in_features=width, in_axis="embed", out_features=inner)
        self.output = config.output.build(in_features=inner, out_features=width, out_axis="embed")

    def __call__(self, x_BSE: jax.Array, context: TokenContext) -> jax.Array:
        x_BSE = self.layer(x_BSE, context)
        token_BSP = self.tokens(context.get("tokens") % self.config.rows)
        return x_BSE + self.output(jax.nn.gelu(self.gate(x_BSE)) * token_BSP)


@feature(
    "per-layer-embeddings",
    kind="stacks",
    needs={"dovetail.layers:Decoder": "there are no tokens to embed"},
    trials=({"rows": 300},),
)
def per_layer_embeddings(config: Any, rows: int = 8192, token_width: int = 8) -> Any:
    """Gives every layer of every decoder its own token embedding, with so many rows.

    Where the vocabulary is larger, tokens share rows.
    """

    def wrapped(layer: Any) -> Any:
        sizes = {"rows": rows, "token_width": token_width}
        return PerLayerEmbedding.Config(layer=layer, **sizes)

    return replace(config, Decoder, lambda old: old.set(stack=rearrange(old.stack, wrapped)))
