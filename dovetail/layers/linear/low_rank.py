"""A linear map of low rank: two, with a norm between them."""

from __future__ import annotations

import jax

from dovetail.config import REQUIRED, ConfigOf
from dovetail.layers.checks import require_positive
from dovetail.layers.interfaces import TokenMap
from dovetail.layers.linear.linear import Linear
from dovetail.layers.norms.rms import RMSNorm
from dovetail.module import Module


class LowRankLinear(Module):
    """Two linear maps with a norm between them: a matrix of low rank."""

    class Config(Module.Config["LowRankLinear"]):
        """Sizes and axes are set by the parent."""

        in_features: int = REQUIRED
        out_features: int = REQUIRED
        in_axis: str | None = None
        out_axis: str | None = None
        rank: int = REQUIRED
        down: ConfigOf[TokenMap] = Linear.Config()
        norm: ConfigOf[TokenMap] = RMSNorm.Config()
        up: ConfigOf[TokenMap] = Linear.Config()

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        require_positive(config, "rank")
        self.down = config.down.build(
            in_features=config.in_features, in_axis=config.in_axis, out_features=config.rank
        )
        self.norm = config.norm.build(width=config.rank, axis=None)
        outward = {"out_features": config.out_features, "out_axis": config.out_axis}
        self.up = config.up.build(in_features=config.rank, in_axis="rank", **outward)

    def __call__(self, x: jax.Array) -> jax.Array:
        """Maps [..., in] to [..., out]."""
        return self.up(self.norm(self.down(x)))
