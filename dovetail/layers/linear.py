"""Linear: a matrix product with an optional bias; NormedLinear: with a norm on what comes out."""

from __future__ import annotations

import jax

from dovetail.config import REQUIRED, ConfigError, ConfigOf, wraps
from dovetail.layers.checks import require_positive
from dovetail.layers.interfaces import TokenMap
from dovetail.layers.norms import RMSNorm
from dovetail.module import Constant, FanScaled, Initializer, Module, parameter


class Linear(Module):
    """Multiplies by a weight of shape (in, out)."""

    class Config(Module.Config["Linear"]):
        """Sizes and logical axes are set by the parent."""

        in_features: int = REQUIRED
        out_features: int = REQUIRED
        in_axis: str | None = None
        out_axis: str | None = None
        bias: bool = False
        weight_init: ConfigOf[Initializer] = FanScaled.Config()

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        require_positive(config, "in_features", "out_features")
        self.weight = parameter(
            (config.in_features, config.out_features),
            (config.in_axis, config.out_axis),
            config.weight_init,
            fan_in=(0,),
            fan_out=(1,),
        )
        self.has_bias = config.bias
        if config.bias:
            self.bias = parameter(
                (config.out_features,), (config.out_axis,), Constant.Config(), decays=False
            )

    def __call__(self, x: jax.Array) -> jax.Array:
        """Maps [..., in] to [..., out]."""
        y = x @ self.weight
        return y + self.bias if self.has_bias else y


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
        self.linear = config.linear.clone(**sizes, **axes).build()
        self.norm = config.norm.clone(width=self.group, axis=None).build()

    def __call__(self, x: jax.Array) -> jax.Array:
        """Maps [..., in] to [..., out]."""
        y = self.linear(x)
        return self.norm(y.reshape(*y.shape[:-1], -1, self.group)).reshape(y.shape)


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
        self.down = config.down.clone(
            in_features=config.in_features, in_axis=config.in_axis, out_features=config.rank
        ).build()
        self.norm = config.norm.clone(width=config.rank, axis=None).build()
        self.up = config.up.clone(
            in_features=config.rank, out_features=config.out_features, out_axis=config.out_axis
        ).build()

    def __call__(self, x: jax.Array) -> jax.Array:
        """Maps [..., in] to [..., out]."""
        return self.up(self.norm(self.down(x)))
