"""LoRA: a small trained product beside a linear map that stays as it is."""

from __future__ import annotations

from collections.abc import Mapping

import jax
import numpy as np

from dovetail.config import REQUIRED, ConfigError, ConfigOf, wraps
from dovetail.layers.checks import require_positive
from dovetail.layers.interfaces import Array, LowRank, TokenMap
from dovetail.layers.linear.linear import Linear
from dovetail.module import Constant, FanScaled, Initializer, Module, parameter


class LoRA(Module):
    """Adds (alpha / rank) x @ a @ b to what a linear map gives (https://arxiv.org/abs/2106.09685).

    Its parameters stand beside those of the map: `query/lora_a` beside `query/weight`. At first b
    is zero, so nothing changes.
    """

    class Config(Module.Config["LoRA"]):
        """Sizes and axes are set by the parent.

        `a` begins with the variance that PEFT gives it, a third of 1 / fan-in.
        """

        in_features: int = REQUIRED
        out_features: int = REQUIRED
        in_axis: str | None = None
        out_axis: str | None = None
        rank: int = 8
        alpha: float = 16.0
        base: ConfigOf[TokenMap] = wraps()
        a_init: ConfigOf[Initializer] = FanScaled.Config(scale=1 / 3)

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        require_positive(config, "in_features", "out_features", "rank")
        self.scale = config.alpha / config.rank
        sizes = {"in_features": config.in_features, "out_features": config.out_features}
        axes = {"in_axis": config.in_axis, "out_axis": config.out_axis}
        self.base = config.base.clone(**sizes, **axes).build()
        fans = {"fan_in": (0,), "fan_out": (1,)}
        self.lora_a = parameter(
            (config.in_features, config.rank), (config.in_axis, None), config.a_init, **fans
        )
        self.lora_b = parameter(
            (config.rank, config.out_features), (None, config.out_axis), Constant.Config(), **fans
        )

    def __call__(self, x: jax.Array) -> jax.Array:
        """Maps [..., in] to [..., out]."""
        return self.base(x) + self.scale * ((x @ self.lora_a) @ self.lora_b)

    def low_rank(self, own: Mapping[str, Array]) -> LowRank:
        """Returns what is added to the weight."""
        self._require_plain_base()
        return LowRank(own["lora_a"], own["lora_b"], self.scale)

    def merged(self, name: str, value: Array, own: Mapping[str, Array]) -> Array:
        """Returns the weight with the product added, in float32; a bias stays as it is."""
        self._require_plain_base()
        if name != "weight":
            return value
        down, up = (own[part].astype(np.float32) for part in ("lora_a", "lora_b"))
        return (value.astype(np.float32) + self.scale * (down @ up)).astype(value.dtype)

    def _require_plain_base(self) -> None:
        if not isinstance(self.base, Linear):
            raise ConfigError(
                f"{self.config.locate('base')}: {type(self.base).__name__} is not a plain linear "
                "map, so an adapter around it cannot be merged into its weight. Wrap the Linear "
                "inside of it: replace(config, Linear, LoRA.Config(...))."
            )
