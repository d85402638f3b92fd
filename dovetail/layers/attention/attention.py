"""Attention: tokens look at each other. Projections, positions, mask and memory are children."""

from __future__ import annotations

import jax

from dovetail.config import ConfigError, ConfigOf
from dovetail.layers.attention.base import AnyAttention
from dovetail.layers.checks import require_positive
from dovetail.layers.interfaces import Places, TokenMap
from dovetail.layers.linear.linear import Linear
from dovetail.parallel import constrain, tag


class Attention(AnyAttention):
    """Multi-head attention with grouped key-value heads (https://arxiv.org/abs/2305.13245)."""

    class Config(AnyAttention.Config):
        """Keys and values.

        Fewer key-value heads than heads share keys among heads; None means as many. The head width
        is the width divided by the heads, unless it is given.
        """

        num_kv_heads: int | None = None
        head_width: int | None = None
        key: ConfigOf[TokenMap] = Linear.Config()
        value: ConfigOf[TokenMap] = Linear.Config()

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        require_positive(config, "num_kv_heads", "head_width")
        self.num_kv_heads = config.num_kv_heads or config.num_heads
        self.head_width = config.head_width or _derived_head_width(config)
        if self.num_heads % self.num_kv_heads:
            raise ConfigError(
                f"{config.locate('num_kv_heads')}: {self.num_kv_heads} key-value heads cannot be "
                f"shared evenly by {self.num_heads} heads. Choose a divisor of {self.num_heads}."
            )
        self._build_projections(config)
        self.positions = config.positions.build(head_width=self.head_width)

    def _build_projections(self, config: Config) -> None:
        inward = {"in_features": config.width, "in_axis": "embed"}
        queries = {"out_features": self.num_heads * self.head_width, "out_axis": "heads"}
        keys = {"out_features": self.num_kv_heads * self.head_width, "out_axis": "kv_heads"}
        self.query = config.query.build(**inward, **queries)
        self.key = config.key.build(**inward, **keys)
        self.value = config.value.build(**inward, **keys)
        self._build_way_out(config, self.head_width, self.head_width)

    def __call__(self, x_BSE: jax.Array, places: Places) -> jax.Array:
        """Maps [B, S, E] to [B, S, E]."""
        query_BSHD = self._heads(tag(self.query(x_BSE), "attention_query"), "heads")
        key_BSKD = self._heads(tag(self.key(x_BSE), "attention_key"), "kv_heads")
        value_BSKD = self._heads(tag(self.value(x_BSE), "attention_value"), "kv_heads")
        query_BSHD, key_BSKD = self.positions(query_BSHD, key_BSKD, places.positions_BS)
        seen = self.memory(key_BSKD, value_BSKD, places)
        return self.mix(query_BSHD, seen, places, x_BSE)

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
