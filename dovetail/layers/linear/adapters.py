"""Low-rank adapters of linear maps: LoRA and DoRA.

R rank, beside the letters of all layers.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from dovetail.config import REQUIRED, ConfigError, ConfigOf, wraps
from dovetail.layers.checks import require_positive
from dovetail.layers.interfaces import Array, LowRankUpdate, TokenMap
from dovetail.layers.linear.linear import Linear
from dovetail.module import (
    ConstantInitializer,
    Initializer,
    Module,
    VarianceScaling,
    parameter,
    vmap_groups,
)


class Adapter(Module):
    """A linear map with a low-rank update (alpha / rank) a @ b; b is initialized to zero."""

    class Config(Module.Config["Adapter"]):
        """Sizes and axes are set by the parent.

        `a` is initialized as in PEFT, with the variance 1 / (3 fan-in).
        """

        in_features: int = REQUIRED
        out_features: int = REQUIRED
        in_axis: str | None = None
        out_axis: str | None = None
        rank: int = 8
        alpha: float = 16.0
        base: ConfigOf[TokenMap] = wraps()
        a_init: ConfigOf[Initializer] = VarianceScaling.Config(scale=1 / 3)

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        require_positive(config, "in_features", "out_features", "rank")
        self.scale = config.alpha / config.rank
        sizes = {"in_features": config.in_features, "out_features": config.out_features}
        axes = {"in_axis": config.in_axis, "out_axis": config.out_axis}
        self.base: Any = config.base.build(**sizes, **axes)

    def factors(self, config: Config) -> tuple[Any, Any]:
        """Declares the parameters a and b, which a subclass names."""
        fans = {"fan_in": (0,), "fan_out": (1,)}
        down, up = (config.in_features, config.rank), (config.rank, config.out_features)
        return (
            parameter(down, (config.in_axis, None), config.a_init, **fans),
            parameter(
                up,
                (None, config.out_axis),
                ConstantInitializer.Config(),
                fan_in_grows=False,
                **fans,
            ),
        )


class LoRA(Adapter):
    """Adds (alpha / rank) x @ a @ b to the output (https://arxiv.org/abs/2106.09685).

    The wrapper is transparent: `query/lora_a` is beside `query/weight`.
    """

    def __init__(self, config: Adapter.Config) -> None:
        super().__init__(config)
        self.lora_a, self.lora_b = self.factors(config)

    def __call__(self, x: jax.Array) -> jax.Array:
        """Maps [..., in] to [..., out]."""
        return self.base(x) + self.scale * ((x @ self.lora_a) @ self.lora_b)

    def low_rank_update(self, own: Mapping[str, Array]) -> LowRankUpdate:
        """Returns the update of the weight."""
        self._require_plain_base()
        return LowRankUpdate(own["lora_a"], own["lora_b"], self.scale)

    def merged(self, name: str, value: Array, own: Mapping[str, Array]) -> Array:
        """Returns the weight with the update added in float32; a bias is unchanged."""
        self._require_plain_base()
        if name != "weight":
            return value
        down, up = (own[name].astype(np.float32) for name in ("lora_a", "lora_b"))
        return (value.astype(np.float32) + self.scale * (down @ up)).astype(value.dtype)

    def _require_plain_base(self) -> None:
        if not isinstance(self.base, Linear):
            raise ConfigError(
                f"{self.config.locate('base')}: {type(self.base).__name__} is not a Linear, so "
                "its adapter cannot be merged into a weight. Wrap the Linear inside it: "
                "replace(config, Linear, LoRA.Config(...))."
            )


class DoRA(Adapter):
    """Weight-decomposed LoRA: a learned magnitude per column (https://arxiv.org/abs/2402.09353).

    The direction of a column is that of weight + (alpha / rank) a @ b. Its norm is that of the
    weight times (1 + magnitude), so at initialization nothing changes, whatever the weight. As
    in section 4.3 of the paper, no gradient flows through the norm of the sum.
    """

    class Config(Adapter.Config):
        """The wrapped map must be a Linear, because its weight is decomposed."""

        base: ConfigOf[Linear] = wraps()

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self.dora_a, self.dora_b = self.factors(config)
        self.dora_magnitude = parameter(
            (config.out_features,), (config.out_axis,), ConstantInitializer.Config(), decays=False
        )

    def __call__(self, x: jax.Array) -> jax.Array:
        """Maps [..., in] to [..., out]."""
        weight, a, b = self.base.weight, self.dora_a, self.dora_b
        gain = vmap_groups(self._gain, weight, a, b, self.dora_magnitude)
        y = self.base.matmul(x, weight) + self.scale * ((x @ a) @ b)
        y = y * gain
        return y + self.base.bias if self.base.has_bias else y

    def _gain(
        self, weight: jax.Array, a: jax.Array, b: jax.Array, magnitude: jax.Array
    ) -> jax.Array:
        """Returns the factor of each column, without materializing the sum."""
        weight_EF, a_ER, b_RF = (array.astype(jnp.float32) for array in (weight, a, b))
        before_F = (weight_EF**2).sum(0)
        crossed_F = ((a_ER.T @ weight_EF) * b_RF).sum(0)
        added_F = ((a_ER.T @ a_ER @ b_RF) * b_RF).sum(0)
        after_F = before_F + 2 * self.scale * crossed_F + self.scale**2 * added_F
        ratio_F = jnp.sqrt(before_F / jnp.where(after_F > 0, after_F, 1.0))
        gain_F = jax.lax.stop_gradient(ratio_F) * (1 + magnitude.astype(jnp.float32))
        return gain_F.astype(weight.dtype)

    def merged(self, name: str, value: Array, own: Mapping[str, Array]) -> Array:
        """Returns the effective weight, computed in float32; a bias is unchanged."""
        if name != "weight":
            return value
        weight = value.astype(np.float32)
        a, b, magnitude = (
            own[name].astype(np.float32) for name in ("dora_a", "dora_b", "dora_magnitude")
        )
        summed = weight + self.scale * (a @ b)
        before, after = (np.linalg.norm(array, axis=0) for array in (weight, summed))
        gain = (1 + magnitude) * before / np.where(after > 0, after, 1.0)
        return (gain * summed).astype(value.dtype)
