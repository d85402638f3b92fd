"""LoRA: a small trained product beside a linear map that stays as it is."""

from __future__ import annotations

from collections.abc import Mapping

import jax
import numpy as np

from dovetail.config import ConfigError
from dovetail.layers.interfaces import Array, LowRank
from dovetail.layers.linear.adapter import Adapter
from dovetail.layers.linear.linear import Linear


class LoRA(Adapter):
    """Adds (alpha / rank) x @ a @ b to what a linear map gives (https://arxiv.org/abs/2106.09685).

    Its parameters stand beside those of the map: `query/lora_a` beside `query/weight`.
    """

    def __init__(self, config: Adapter.Config) -> None:
        super().__init__(config)
        self.lora_a, self.lora_b = self.factors(config)

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
