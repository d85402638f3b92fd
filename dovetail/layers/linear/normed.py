"""A linear map with a norm on what comes out."""

from __future__ import annotations

from typing import Any

import jax

from dovetail.config import REQUIRED, ConfigError, ConfigOf, wraps
from dovetail.config import Config as AnyConfig
from dovetail.layers.checks import require_positive
from dovetail.layers.interfaces import TokenMap
from dovetail.layers.linear.linear import Linear
from dovetail.layers.norms.rms import RMSNorm
from dovetail.module import Module


class NormedLinear(Module):
    """A linear map whose result is normalised, all at once or in groups.

    As the query and key of attention it is QK-norm (https://arxiv.org/abs/2302.05442): with groups
    as wide as a head, each head is normalised by itself.
    """

    class Config(Module.Config["NormedLinear"]):
        """Sizes and axes are set by the parent. `group` features share a norm; None means all."""

        in_features: int = REQUIRED
        out_features: int = REQUIRED
        in_axis: str | None = None
        out_axis: str | None = None
        linear: ConfigOf[TokenMap] = wraps(Linear.Config())
        norm: ConfigOf[TokenMap] = RMSNorm.Config()
        group: int | None = None

        def without_norm(self) -> AnyConfig[Any]:
            """Returns the linear map."""
            return self.linear

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        require_positive(config, "group")
        self.group = config.group or config.out_features
        if config.out_features % self.group:
            raise ConfigError(
                f"{config.locate('group')}: {config.out_features} features do not divide into "
                f"groups of {self.group}. For QK-norm write the attention's head width."
            )
        sizes = {"in_features": config.in_features, "out_features": config.out_features}
        axes = {"in_axis": config.in_axis, "out_axis": config.out_axis}
        self.linear = config.linear.build(**sizes, **axes)
        self.norm = config.norm.build(width=self.group, axis=None)

    def __call__(self, x: jax.Array) -> jax.Array:
        """Maps [..., in] to [..., out]."""
        y = self.linear(x)
        return self.norm(y.reshape(*y.shape[:-1], -1, self.group)).reshape(y.shape)
