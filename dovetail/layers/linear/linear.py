"""Linear: a matrix product with an optional bias."""

from __future__ import annotations

import jax

from dovetail.config import REQUIRED, ConfigOf
from dovetail.layers.checks import require_positive
from dovetail.layers.linear.product import PlainProduct, Product
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
        product: ConfigOf[Product] = PlainProduct.Config()
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
        self.product = config.product.build()
        self.has_bias = config.bias
        if config.bias:
            self.bias = parameter(
                (config.out_features,), (config.out_axis,), Constant.Config(), decays=False
            )

    def __call__(self, x: jax.Array) -> jax.Array:
        """Maps [..., in] to [..., out]."""
        y = self.product(x, self.weight)
        return y + self.bias if self.has_bias else y
