"""Differential attention: what two maps agree on is noise, and is taken off.

B batch, S queries, H heads, D head width, W value width.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp

from dovetail.config import ConfigError, ConfigOf
from dovetail.layers.attention.memory import Remembered
from dovetail.layers.attention.mixing import ChangedMixing, Look
from dovetail.layers.interfaces import TokenMap
from dovetail.layers.norms.rms import RMSNorm
from dovetail.module import Initializer, Normal, parameter


class DifferentialHeads(ChangedMixing):
    """The difference of two attention maps (https://arxiv.org/abs/2410.05258).

    Each head looks twice: features of even index make the first map, those of odd index the
    second, so that no map is larger than before and the projections keep their shapes. (The
    paper halves the number of heads and doubles the values' width; sizes are the same.) Even and
    odd, and not halves, because a rotary embedding turns feature i together with i + D/2: where
    D/2 is even, as is usual, they stay together.
    """

    class Config(ChangedMixing.Config):
        """The weight of the second map begins at `first_weight`.

        The paper lets it begin at 0.2 in the first layer and rise to 0.8 in deep ones. The layers
        of a stack share one config and one program, and know no index: so it is the same in all.
        """

        first_weight: float = 0.8
        norm: ConfigOf[TokenMap] = RMSNorm.Config(epsilon=1e-5)
        weight_init: ConfigOf[Initializer] = Normal.Config(standard_deviation=0.1)

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        if config.key_width % 2:
            raise ConfigError(
                f"{config.locate('key_width')}: each head makes two maps of half its width, so "
                f"the width must be even, got {config.key_width}. Set the attention's head_width."
            )
        self.first_weight = config.first_weight
        self.norm = config.norm.build(width=config.value_width, axis=None)
        # Of each map, a vector of the query and one of the key.
        shape = (2, 2, config.key_width // 2)
        self.exponents = parameter(shape, (None, None, None), config.weight_init, decays=False)

    def __call__(
        self, look: Look, query_BSHD: jax.Array, seen: Remembered, x_BSE: jax.Array
    ) -> jax.Array:
        """Looks twice, takes the second off, and normalises each head."""
        first, second = (
            self.base(look, query_BSHD[..., i::2], _every_second(seen, i), x_BSE) for i in (0, 1)
        )
        # In float32: what is left of two nearly equal numbers is small, and the norm enlarges it.
        taken_off = self._weight() * second.astype(jnp.float32)
        normed_BSHW = self.norm(first.astype(jnp.float32) - taken_off)
        return ((1 - self.first_weight) * normed_BSHW).astype(first.dtype)

    def _weight(self) -> jax.Array:
        """Returns the weight of the second map, about `first_weight` at first."""
        queries, keys = jnp.moveaxis(self.exponents.astype(jnp.float32), 1, 0)
        first, second = jnp.exp(jnp.sum(queries * keys, axis=-1))
        return first - second + self.first_weight


def _every_second(seen: Remembered, start: int) -> Remembered:
    return seen._replace(key_BTKD=seen.key_BTKD[..., start::2])
