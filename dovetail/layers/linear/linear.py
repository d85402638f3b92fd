"""Linear maps: plain, low-rank, and with a norm on the output; and their matmul."""

from __future__ import annotations

from typing import Any, Protocol

import jax

from dovetail.config import REQUIRED, Component, ConfigError, ConfigOf, wraps
from dovetail.config import Config as AnyConfig
from dovetail.layers.checks import require_positive
from dovetail.layers.interfaces import TokenMap
from dovetail.layers.norms import RMSNorm
from dovetail.module import (
    ConstantInitializer,
    GroupedParameter,
    Initializer,
    Module,
    VarianceScaling,
    parameter,
)


class MatmulFunction(Protocol):
    """The matmul of a linear map. Inside experts the weight is a `GroupedParameter`."""

    def __call__(self, x: jax.Array, weight: jax.Array | GroupedParameter, /) -> jax.Array:
        """Maps [..., in] and [in, out] to [..., out]."""
        ...


class Matmul(Component):
    """A matmul in the dtype of its inputs."""

    def __call__(self, x: jax.Array, weight: jax.Array | GroupedParameter) -> jax.Array:
        """Maps [..., in] and [in, out] to [..., out]."""
        return x @ weight


class Linear(Module):
    """x @ weight [in, out], with an optional bias."""

    class Config(Module.Config["Linear"]):
        """Sizes and logical axes are set by the parent."""

        in_features: int = REQUIRED
        out_features: int = REQUIRED
        in_axis: str | None = None
        out_axis: str | None = None
        bias: bool = False
        matmul: ConfigOf[MatmulFunction] = Matmul.Config()
        weight_init: ConfigOf[Initializer] = VarianceScaling.Config()

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
        self.matmul = config.matmul.build()
        self.has_bias = config.bias
        if config.bias:
            self.bias = parameter(
                (config.out_features,),
                (config.out_axis,),
                ConstantInitializer.Config(),
                decays=False,
            )

    def __call__(self, x: jax.Array) -> jax.Array:
        """Maps [..., in] to [..., out]."""
        y = self.matmul(x, self.weight)
        return y + self.bias if self.has_bias else y


class LowRankLinear(Module):
    """A low-rank linear map: down-projection, norm, up-projection."""

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
        out_sizes = {"out_features": config.out_features, "out_axis": config.out_axis}
        self.up = config.up.build(in_features=config.rank, in_axis="rank", **out_sizes)

    def __call__(self, x: jax.Array) -> jax.Array:
        """Maps [..., in] to [..., out]."""
        return self.up(self.norm(self.down(x)))


class NormedLinear(Module):
    """A linear map with a norm on its output.

    As the query and key projections it is QK-norm (https://arxiv.org/abs/2302.05442); with `group`
    the head dim, each head is normalized separately.
    """

    class Config(Module.Config["NormedLinear"]):
        """Sizes and axes are set by the parent. The norm is over `group` features; None is all."""

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
