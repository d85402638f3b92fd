"""What every attention has: heads, positions, a mask, scores, a memory, and a way out."""

from __future__ import annotations

import jax

from dovetail.config import REQUIRED, ConfigOf, config_for
from dovetail.kernels.attention import Causal, Mask
from dovetail.layers.attention.memory import KeyValueMemory, NoMemory, Remembered, attend
from dovetail.layers.attention.scores import Scores
from dovetail.layers.checks import require_positive
from dovetail.layers.interfaces import Places, PositionEncoding, TokenMap
from dovetail.layers.linear.linear import Linear
from dovetail.layers.positions.none import NoPositions
from dovetail.module import Module


class AnyAttention(Module):
    """What attentions have in common: `select(config, AnyAttention)` finds them all.

    A subclass builds `query`, `output` and `positions`, whose sizes it knows.
    """

    class Config(Module.Config["AnyAttention"]):
        """The width is set by the parent; what scores are multiplied with is None for the usual."""

        width: int = REQUIRED
        num_heads: int = REQUIRED
        query: ConfigOf[TokenMap] = Linear.Config()
        output: ConfigOf[TokenMap] = Linear.Config()
        positions: ConfigOf[PositionEncoding] = NoPositions.Config()
        mask: ConfigOf[Mask] = config_for(Causal)
        scale: float | None = None
        scores: ConfigOf[Scores] = Scores.Config()
        memory: ConfigOf[KeyValueMemory] = NoMemory.Config()

    output: TokenMap

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        require_positive(config, "width", "num_heads")
        self.num_heads, self.scale = config.num_heads, config.scale
        self.mask, self.memory = config.mask.build(), config.memory.build()
        self.scores = config.scores.clone(num_heads=config.num_heads).build()

    def mix(self, query_BSHD: jax.Array, seen: Remembered, places: Places) -> jax.Array:
        """Lets queries look at what is remembered: [B, S, H, D] to [B, S, H, W]."""
        where, options = self.config.locate("mask"), self.scores().options()
        return attend(query_BSHD, seen, places, self.mask, where, scale=self.scale, **options)

    def read_out(self, mixed_BSHW: jax.Array, x_BSE: jax.Array) -> jax.Array:
        """Maps what was mixed to the stream; `x_BSE` is what attention read."""
        return self.output(mixed_BSHW.reshape(*x_BSE.shape[:2], -1))
