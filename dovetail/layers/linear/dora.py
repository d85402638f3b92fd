"""DoRA: an adapter of which the length of each column of the weight is a parameter of its own."""

from __future__ import annotations

from collections.abc import Mapping

import jax
import jax.numpy as jnp
import numpy as np

from dovetail.config import ConfigOf, wraps
from dovetail.layers.interfaces import Array
from dovetail.layers.linear.adapter import Adapter
from dovetail.layers.linear.linear import Linear
from dovetail.module import Constant, on_each_copy, parameter


class DoRA(Adapter):
    """A linear map whose weight is a length times a direction (https://arxiv.org/abs/2402.09353).

    The direction is that of weight + (alpha / rank) a @ b, column by column. The length is the
    weight's own times (1 + magnitude): so all parameters begin where nothing changes, whichever run
    the weight comes from. As the paper advises (section 4.3), no gradient goes through the norm
    that makes a direction of the sum.
    """

    class Config(Adapter.Config):
        """The map must be a plain one: its weight is taken apart."""

        base: ConfigOf[Linear] = wraps()

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self.dora_a, self.dora_b = self.factors(config)
        self.dora_magnitude = parameter(
            (config.out_features,), (config.out_axis,), Constant.Config(), decays=False
        )

    def __call__(self, x: jax.Array) -> jax.Array:
        """Maps [..., in] to [..., out]."""
        weight, a, b = self.base.weight, self.dora_a, self.dora_b
        gain = on_each_copy(self._gain, weight, a, b, self.dora_magnitude)
        y = self.base.product(x, weight) + self.scale * ((x @ a) @ b)
        y = y * gain
        return y + self.base.bias if self.base.has_bias else y

    def _gain(
        self, weight: jax.Array, a: jax.Array, b: jax.Array, magnitude: jax.Array
    ) -> jax.Array:
        """Returns what each column of the sum is multiplied by; the sum itself is never made."""
        weight_EF, a_ER, b_RF = (array.astype(jnp.float32) for array in (weight, a, b))
        before_F = (weight_EF**2).sum(0)
        crossed_F = ((a_ER.T @ weight_EF) * b_RF).sum(0)
        added_F = ((a_ER.T @ a_ER @ b_RF) * b_RF).sum(0)
        after_F = before_F + 2 * self.scale * crossed_F + self.scale**2 * added_F
        ratio_F = jnp.sqrt(before_F / jnp.where(after_F > 0, after_F, 1.0))
        gain_F = jax.lax.stop_gradient(ratio_F) * (1 + magnitude.astype(jnp.float32))
        return gain_F.astype(weight.dtype)

    def merged(self, name: str, value: Array, own: Mapping[str, Array]) -> Array:
        """Returns the weight as it multiplies, computed in float32; a bias stays as it is."""
        if name != "weight":
            return value
        weight = value.astype(np.float32)
        a, b, magnitude = (
            own[part].astype(np.float32) for part in ("dora_a", "dora_b", "dora_magnitude")
        )
        summed = weight + self.scale * (a @ b)
        before, after = (np.linalg.norm(array, axis=0) for array in (weight, summed))
        gain = (1 + magnitude) * before / np.where(after > 0, after, 1.0)
        return (gain * summed).astype(value.dtype)
