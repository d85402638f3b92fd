"""The base of attention layers: mask, scores, KV cache and output projection.

W value head dim, beside the letters of all layers.
"""

from __future__ import annotations

import jax

from dovetail.config import REQUIRED, Config, ConfigOf, config_for
from dovetail.kernels.attention import Causal, Mask
from dovetail.layers.attention.kv_cache import (
    KeyValues,
    KVCache,
    NoKVCache,
    ScoreScale,
    attend,
)
from dovetail.layers.attention.mixing import Mixing
from dovetail.layers.attention.scores import Scores
from dovetail.layers.checks import require_positive
from dovetail.layers.context import TokenContext
from dovetail.layers.interfaces import PositionEncoding, TokenMap
from dovetail.layers.linear.linear import Linear
from dovetail.layers.positions.base import NoPositions
from dovetail.module import Module


class BaseAttention(Module):
    """The base of attention layers: `select(config, BaseAttention)` finds them all.

    A subclass builds `query` and `positions`, and calls `build_output`.
    """

    class Config(Module.Config["BaseAttention"]):
        """The width is set by the parent.

        `scale` is the softmax scale: None for 1 / sqrt(head dim), a number, or a function of it.
        """

        width: int = REQUIRED
        num_heads: int = REQUIRED
        query: ConfigOf[TokenMap] = Linear.Config()
        output: ConfigOf[TokenMap] = Linear.Config()
        positions: ConfigOf[PositionEncoding] = NoPositions.Config()
        mask: ConfigOf[Mask] = config_for(Causal)
        scale: float | ConfigOf[ScoreScale] | None = None
        scores: ConfigOf[Scores] = Scores.Config()
        mixing: ConfigOf[Mixing] = Mixing.Config()
        cache: ConfigOf[KVCache] = NoKVCache.Config()

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        require_positive(config, "width", "num_heads")
        self.num_heads = config.num_heads
        self.scale = config.scale.build() if isinstance(config.scale, Config) else config.scale
        self.mask, self.cache = config.mask.build(), config.cache.build()
        self.scores = config.scores.build(num_heads=config.num_heads)

    def build_output(self, config: Config, key_width: int, value_width: int) -> None:
        """Builds mixing and output projection, given the head dims of keys and values."""
        heads = {"width": config.width, "num_heads": config.num_heads}
        widths = {"key_width": key_width, "value_width": value_width}
        self.mixing = config.mixing.build(**heads, **widths)
        in_sizes = {"in_features": config.num_heads * value_width, "in_axis": "heads"}
        out_sizes = {"out_features": config.width, "out_axis": "embed"}
        self.output = config.output.build(**in_sizes, **out_sizes)

    def attend(
        self, q_BSHD: jax.Array, kv: KeyValues, context: TokenContext, x_BSE: jax.Array
    ) -> jax.Array:
        """Attends, and applies the output projection: [B, S, H, D] to [B, S, E]."""
        where, options = self.config.locate("mask"), self.scores().options()

        def attend_once(q_BSHD: jax.Array, kv: KeyValues) -> jax.Array:
            return attend(q_BSHD, kv, context, self.mask, where, scale=self.scale, **options)

        output_BSHW = self.mixing(attend_once, q_BSHD, kv, x_BSE)
        return self.output(output_BSHW.reshape(*x_BSE.shape[:2], -1))
