"""What every attention has: heads, positions, a mask, scores, mixing, a memory, and a way out."""

from __future__ import annotations

import jax

from dovetail.config import REQUIRED, Config, ConfigOf, config_for
from dovetail.kernels.attention import Causal, Mask
from dovetail.layers.attention.memory import (
    KeyValueMemory,
    NoMemory,
    Remembered,
    ScaleOfWidth,
    attend,
)
from dovetail.layers.attention.mixing import Mixing
from dovetail.layers.attention.scores import Scores
from dovetail.layers.checks import require_positive
from dovetail.layers.interfaces import Places, PositionEncoding, TokenMap
from dovetail.layers.linear.linear import Linear
from dovetail.layers.positions.none import NoPositions
from dovetail.module import Module


class AnyAttention(Module):
    """What attentions have in common: `select(config, AnyAttention)` finds them all.

    A subclass builds `query` and `positions`, whose sizes it knows, and tells those of the way out.
    """

    class Config(Module.Config["AnyAttention"]):
        """The width is set by the parent.

        What scores are multiplied with is None for the usual, or follows from the heads' width.
        """

        width: int = REQUIRED
        num_heads: int = REQUIRED
        query: ConfigOf[TokenMap] = Linear.Config()
        output: ConfigOf[TokenMap] = Linear.Config()
        positions: ConfigOf[PositionEncoding] = NoPositions.Config()
        mask: ConfigOf[Mask] = config_for(Causal)
        scale: float | ConfigOf[ScaleOfWidth] | None = None
        scores: ConfigOf[Scores] = Scores.Config()
        mixing: ConfigOf[Mixing] = Mixing.Config()
        memory: ConfigOf[KeyValueMemory] = NoMemory.Config()

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        require_positive(config, "width", "num_heads")
        self.num_heads = config.num_heads
        self.scale = config.scale.build() if isinstance(config.scale, Config) else config.scale
        self.mask, self.memory = config.mask.build(), config.memory.build()
        self.scores = config.scores.build(num_heads=config.num_heads)

    def _build_way_out(self, config: Config, key_width: int, value_width: int) -> None:
        """Builds what comes after queries, keys and values, of these widths a head."""
        heads = {"width": config.width, "num_heads": config.num_heads}
        widths = {"key_width": key_width, "value_width": value_width}
        self.mixing = config.mixing.build(**heads, **widths)
        inward = {"in_features": config.num_heads * value_width, "in_axis": "heads"}
        outward = {"out_features": config.width, "out_axis": "embed"}
        self.output = config.output.build(**inward, **outward)

    def mix(
        self, query_BSHD: jax.Array, seen: Remembered, places: Places, x_BSE: jax.Array
    ) -> jax.Array:
        """Lets queries look at what is remembered, and maps what they find: to [B, S, E]."""
        where, options = self.config.locate("mask"), self.scores().options()

        def look(query_BSHD: jax.Array, seen: Remembered) -> jax.Array:
            return attend(query_BSHD, seen, places, self.mask, where, scale=self.scale, **options)

        mixed_BSHW = self.mixing(look, query_BSHD, seen, x_BSE)
        return self.output(mixed_BSHW.reshape(*x_BSE.shape[:2], -1))
