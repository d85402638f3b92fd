"""What adapters of a linear map have in common: a product of low rank beside its weight."""

from __future__ import annotations

from typing import Any

from dovetail.config import REQUIRED, ConfigOf, wraps
from dovetail.layers.checks import require_positive
from dovetail.layers.interfaces import TokenMap
from dovetail.module import Constant, FanScaled, Initializer, Module, parameter


class Adapter(Module):
    """A linear map, and beside it (alpha / rank) a @ b, which is zero at first since b is."""

    class Config(Module.Config["Adapter"]):
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
        self.base: Any = config.base.build(**sizes, **axes)

    def factors(self, config: Config) -> tuple[Any, Any]:
        """Declares the parameters a and b; which names they have is the adapter's matter."""
        fans = {"fan_in": (0,), "fan_out": (1,)}
        down, up = (config.in_features, config.rank), (config.rank, config.out_features)
        return (
            parameter(down, (config.in_axis, None), config.a_init, **fans),
            parameter(up, (None, config.out_axis), Constant.Config(), fan_in_grows=False, **fans),
        )
