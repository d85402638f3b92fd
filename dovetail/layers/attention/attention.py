"""Multi-head attention. Projections, position encoding, mask and KV cache are children."""

from __future__ import annotations

import jax

from dovetail.config import ConfigError, ConfigOf
from dovetail.layers.attention.base import BaseAttention
from dovetail.layers.checks import require_positive
from dovetail.layers.context import TokenContext
from dovetail.layers.interfaces import TokenMap
from dovetail.layers.linear.linear import Linear
from dovetail.parallel import constrain, tag


class Attention(BaseAttention):
    """Multi-head attention with grouped key-value heads (https://arxiv.org/abs/2305.13245)."""

    class Config(BaseAttention.Config):
        """`num_kv_heads` below `num_heads` is grouped-query attention; None means as many as heads.

        `head_width` is the head dim; None means `width / num_heads`.
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
        in_sizes = {"in_features": config.width, "in_axis": "embed"}
        queries = {"out_features": self.num_heads * self.head_width, "out_axis": "heads"}
        keys = {"out_features": self.num_kv_heads * self.head_width, "out_axis": "kv_heads"}
        self.query = config.query.build(**in_sizes, **queries)
        self.key = config.key.build(**in_sizes, **keys)
        self.value = config.value.build(**in_sizes, **keys)
        self.build_output(config, self.head_width, self.head_width)

    def __call__(self, x_BSE: jax.Array, context: TokenContext) -> jax.Array:
        """Maps [B, S, E] to [B, S, E]."""
        q_BSHD = self.split_heads(tag(self.query(x_BSE), "attention_query"), "heads")
        k_BSKD = self.split_heads(tag(self.key(x_BSE), "attention_key"), "kv_heads")
        v_BSKD = self.split_heads(tag(self.value(x_BSE), "attention_value"), "kv_heads")
        q_BSHD, k_BSKD = self.positions(q_BSHD, k_BSKD, context)
        kv = self.cache(k_BSKD, v_BSKD, context)
        return self.attend(q_BSHD, kv, context, x_BSE)

    def split_heads(self, x: jax.Array, axis: str) -> jax.Array:
        """Returns a projection by head, [B, S, H, D]; `axis` is `heads` or `kv_heads`."""
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
