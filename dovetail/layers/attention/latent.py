"""Multi-head latent attention (MLA): keys and values are up-projections of one latent per token.

R rotary head dim, W value head dim, C latent width, X plain and value head dims together, beside
the letters of all layers.
"""

from __future__ import annotations

from dataclasses import replace

import jax
import jax.numpy as jnp

from dovetail.config import REQUIRED, ConfigOf
from dovetail.layers.attention.base import BaseAttention
from dovetail.layers.attention.kv_cache import KeyValues
from dovetail.layers.checks import require_positive
from dovetail.layers.context import TokenContext
from dovetail.layers.interfaces import TokenMap
from dovetail.layers.linear.linear import Linear
from dovetail.layers.norms import RMSNorm
from dovetail.parallel import constrain, tag


class LatentAttention(BaseAttention):
    """MLA of DeepSeek-V2 (https://arxiv.org/abs/2405.04434).

    The KV cache holds the latent and one rotary key per token: C + R numbers, whatever the number
    of heads.
    """

    class Config(BaseAttention.Config):
        """A head has `plain_width` features without positions and `rotated_width` rotary ones."""

        latent_width: int = REQUIRED
        plain_width: int = REQUIRED
        rotated_width: int = REQUIRED
        value_width: int = REQUIRED
        latent: ConfigOf[TokenMap] = Linear.Config()
        latent_norm: ConfigOf[TokenMap] = RMSNorm.Config()
        expand: ConfigOf[TokenMap] = Linear.Config()

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        require_positive(config, "latent_width", "plain_width", "rotated_width", "value_width")
        self.plain = config.plain_width
        heads, rotated = config.num_heads, config.rotated_width
        in_sizes = {"in_features": config.width, "in_axis": "embed"}
        self.query = config.query.build(
            **in_sizes, out_features=heads * (self.plain + rotated), out_axis="heads"
        )
        self.latent = config.latent.build(**in_sizes, out_features=config.latent_width + rotated)
        self.latent_norm = config.latent_norm.build(width=config.latent_width, axis=None)
        self.expand = config.expand.build(
            in_features=config.latent_width,
            in_axis="rank",
            out_features=heads * (self.plain + config.value_width),
            out_axis="heads",
        )
        self.build_output(config, self.plain + rotated, config.value_width)
        self.positions = config.positions.build(head_width=rotated)

    def __call__(self, x_BSE: jax.Array, context: TokenContext) -> jax.Array:
        """Maps [B, S, E] to [B, S, E]."""
        q_BSHD, cached = self._project(x_BSE, context)
        k_BTHD, v_BTHW = self._up_project(cached)
        kv = replace(cached, k_BTKD=k_BTHD, v_BTKW=v_BTHW)
        return self.attend(q_BSHD, kv, context, x_BSE)

    def _project(self, x_BSE: jax.Array, context: TokenContext) -> tuple[jax.Array, KeyValues]:
        """Returns the queries, and the cached rotary keys (as keys) and latents (as values)."""
        q_BSHD = self._heads(tag(self.query(x_BSE), "attention_query"))
        both = tag(self.latent(x_BSE), "attention_latent")
        width = self.config.latent_width
        latent_BSC = self.latent_norm(both[..., :width])
        plain, rotated = q_BSHD[..., : self.plain], q_BSHD[..., self.plain :]
        # All heads share one rotary key; the KV cache stores it as a single key-value head.
        rotated, k_BS1R = self.positions(rotated, both[:, :, None, width:], context)
        q_BSHD = jnp.concatenate([plain, rotated], axis=-1)
        # Rows are gathered from a paged cache first: up-projecting the whole pool costs more.
        return q_BSHD, self.cache(k_BS1R, latent_BSC[:, :, None], context).gathered(context)

    def _up_project(self, cached: KeyValues) -> tuple[jax.Array, jax.Array]:
        """Returns keys and values of every head."""
        expanded_BTHX = self._heads(self.expand(cached.v_BTKW[:, :, 0]))
        plain, v_BTHW = expanded_BTHX[..., : self.plain], expanded_BTHX[..., self.plain :]
        shape = (*plain.shape[:-1], cached.k_BTKD.shape[-1])
        k_BTHD = jnp.concatenate([plain, jnp.broadcast_to(cached.k_BTKD, shape)], axis=-1)
        return k_BTHD, v_BTHW

    def _heads(self, x: jax.Array) -> jax.Array:
        x_BSHD = x.reshape(*x.shape[:2], self.num_heads, -1)
        return constrain(x_BSHD, "batch", "sequence", "heads", None)
