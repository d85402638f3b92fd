"""Attention: tokens look at each other. Projections, positions, mask and memory are children."""

from __future__ import annotations

import jax

from dovetail.config import REQUIRED, ConfigError, ConfigOf, config_for
from dovetail.kernels.attention import Causal, Mask
from dovetail.layers.checks import require_positive
from dovetail.layers.interfaces import Places, PositionEncoding, TokenMap
from dovetail.layers.linear import Linear
from dovetail.layers.memory import KeyValueMemory, NoMemory, attend
from dovetail.layers.positions import NoPositions
from dovetail.layers.scores import Scores
from dovetail.module import Module
from dovetail.parallel import constrain, tag


class Attention(Module):
    """Multi-head attention with grouped key-value heads (https://arxiv.org/abs/2305.13245)."""

    class Config(Module.Config["Attention"]):
        """The width is set by the parent.

        Fewer key-value heads than heads share keys among heads; None means as many. The head width
        is the width divided by the heads, unless it is given.
        """

        width: int = REQUIRED
        num_heads: int = REQUIRED
        num_kv_heads: int | None = None
        head_width: int | None = None
        query: ConfigOf[TokenMap] = Linear.Config()
        key: ConfigOf[TokenMap] = Linear.Config()
        value: ConfigOf[TokenMap] = Linear.Config()
        output: ConfigOf[TokenMap] = Linear.Config()
        positions: ConfigOf[PositionEncoding] = NoPositions.Config()
        mask: ConfigOf[Mask] = config_for(Causal)
        memory: ConfigOf[KeyValueMemory] = NoMemory.Config()
        scale: float | None = None
        scores: ConfigOf[Scores] = Scores.Config()

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        require_positive(config, "width", "num_heads", "num_kv_heads", "head_width")
        self.num_heads = config.num_heads
        self.num_kv_heads = config.num_kv_heads or config.num_heads
        self.head_width = config.head_width or _derived_head_width(config)
        if self.num_heads % self.num_kv_heads:
            raise ConfigError(
                f"{config.locate('num_kv_heads')}: {self.num_kv_heads} key-value heads cannot be "
                f"shared evenly by {self.num_heads} heads. Choose a divisor of {self.num_heads}."
            )
        self.scale, self.mask = config.scale, config.mask.build()
        self.scores = config.scores.clone(num_heads=self.num_heads).build()
        self._build_projections(config)
        self.positions = config.positions.clone(head_width=self.head_width).build()
        self.memory = config.memory.build()

    def _build_projections(self, config: Config) -> None:
        inward = {"in_features": config.width, "in_axis": "embed"}
        queries = {"out_features": self.num_heads * self.head_width, "out_axis": "heads"}
        keys = {"out_features": self.num_kv_heads * self.head_width, "out_axis": "kv_heads"}
        outward = {"in_features": self.num_heads * self.head_width, "in_axis": "heads"}
        self.query = config.query.clone(**inward, **queries).build()
        self.key = config.key.clone(**inward, **keys).build()
        self.value = config.value.clone(**inward, **keys).build()
        self.output = config.output.clone(
            **outward, out_features=config.width, out_axis="embed"
        ).build()

    def __call__(self, x_BSE: jax.Array, places: Places) -> jax.Array:
        """Maps [B, S, E] to [B, S, E]."""
        query_BSHD = self._heads(tag(self.query(x_BSE), "attention_query"), "heads")
        key_BSKD = self._heads(tag(self.key(x_BSE), "attention_key"), "kv_heads")
        value_BSKD = self._heads(tag(self.value(x_BSE), "attention_value"), "kv_heads")
        query_BSHD, key_BSKD = self.positions(query_BSHD, key_BSKD, places.positions_BS)
        seen = self.memory(key_BSKD, value_BSKD, places)
        mixed_BSHD = attend(
            query_BSHD,
            seen,
            places,
            self.mask,
            self.config.locate("mask"),
            scale=self.scale,
            **self.scores().options(),
        )
        return self.output(mixed_BSHD.reshape(*x_BSE.shape[:2], -1))

    def _heads(self, x: jax.Array, axis: str) -> jax.Array:
        x_BSHD = x.reshape(*x.shape[:2], -1, self.head_width)
        return constrain(x_BSHD, "batch", "sequence", axis, None)


def _derived_head_width(config: Attention.Config) -> int:
    if config.width % config.num_heads:
        raise ConfigError(
            f"{config.locate('num_heads')}: a width of {config.width} does not divide into "
            f"{config.num_heads} heads. Choose a number of heads that divides the width, or set "
            "head_width."
        )
    return config.width // config.num_heads
