"""Multi-head latent attention: keys and values are read from one small vector a token.

B batch, S queries, T keys, E embed, H heads, N head width without positions, R rotated width,
W value width, C latent width.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp

from dovetail.config import REQUIRED, ConfigOf
from dovetail.layers.attention.base import AnyAttention
from dovetail.layers.attention.memory import Remembered
from dovetail.layers.checks import require_positive
from dovetail.layers.interfaces import Places, TokenMap
from dovetail.layers.linear.linear import Linear
from dovetail.layers.norms.rms import RMSNorm
from dovetail.parallel import constrain, tag


class LatentAttention(AnyAttention):
    """Attention that remembers a latent vector and one rotated key a token (arXiv 2405.04434).

    A memory holds C + R numbers a token, whatever the number of heads.
    """

    class Config(AnyAttention.Config):
        """Each head has `plain_width` features that know no position, `rotated_width` that do."""

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
        inward = {"in_features": config.width, "in_axis": "embed"}
        self.query = config.query.build(
            **inward, out_features=heads * (self.plain + rotated), out_axis="heads"
        )
        self.latent = config.latent.build(**inward, out_features=config.latent_width + rotated)
        self.latent_norm = config.latent_norm.build(width=config.latent_width, axis=None)
        self.expand = config.expand.build(
            in_features=config.latent_width,
            in_axis="rank",
            out_features=heads * (self.plain + config.value_width),
            out_axis="heads",
        )
        self._build_way_out(config, self.plain + rotated, config.value_width)
        self.positions = config.positions.build(head_width=rotated)

    def __call__(self, x_BSE: jax.Array, places: Places) -> jax.Array:
        """Maps [B, S, E] to [B, S, E]."""
        query_BSHD, seen = self._read(x_BSE, places)
        key_BTHD, value_BTHW = self._expanded(seen)
        seen = seen._replace(key_BTKD=key_BTHD, value_BTKD=value_BTHW)
        return self.mix(query_BSHD, seen, places, x_BSE)

    def _read(self, x_BSE: jax.Array, places: Places) -> tuple[jax.Array, Remembered]:
        """Returns the queries, and all latents and rotated keys that they may see."""
        query_BSHD = self._heads(tag(self.query(x_BSE), "attention_query"))
        both = tag(self.latent(x_BSE), "attention_latent")
        width = self.config.latent_width
        latent_BSC = self.latent_norm(both[..., :width])
        plain, rotated = query_BSHD[..., : self.plain], query_BSHD[..., self.plain :]
        # One rotated key serves all heads; a memory knows it as a single key-value head.
        rotated, key_BS1R = self.positions(rotated, both[:, :, None, width:], places.positions_BS)
        query_BSHD = jnp.concatenate([plain, rotated], axis=-1)
        return query_BSHD, self.memory(key_BS1R, latent_BSC[:, :, None], places)

    def _expanded(self, seen: Remembered) -> tuple[jax.Array, jax.Array]:
        """Returns each head's own keys and values of all that is remembered."""
        expanded_BTHX = self._heads(self.expand(seen.value_BTKD[:, :, 0]))
        plain, value_BTHW = expanded_BTHX[..., : self.plain], expanded_BTHX[..., self.plain :]
        shape = (*plain.shape[:-1], seen.key_BTKD.shape[-1])
        key_BTHD = jnp.concatenate([plain, jnp.broadcast_to(seen.key_BTKD, shape)], axis=-1)
        return key_BTHD, value_BTHW

    def _heads(self, x: jax.Array) -> jax.Array:
        x_BSHD = x.reshape(*x.shape[:2], self.num_heads, -1)
        return constrain(x_BSHD, "batch", "sequence", "heads", None)
