"""Stacks: the same layer many times, as one array with a leading axis and one loop."""

from __future__ import annotations

import functools
from typing import Any

import jax

from dovetail.config import REQUIRED, ConfigError, ConfigOf, incidental
from dovetail.layers.checks import require_positive
from dovetail.layers.interfaces import Layer, Places
from dovetail.layers.transformer import TransformerBlock
from dovetail.module import Module, repeated, scan
from dovetail.parallel import KeepAll, Remat


class Stack(Module):
    """Applies a layer `num_layers` times, each time with its own slice of the parameters.

    "Unrolled" is a setting of the loop, not another layout: `unroll=num_layers` gives straight
    code. A stack is a layer itself, so a pattern of stacks puts different ones in a row.
    """

    class Config(Module.Config["Stack"]):
        """The width is set by the parent."""

        width: int = REQUIRED
        num_layers: int = REQUIRED
        layer: ConfigOf[Layer] = TransformerBlock.Config()
        remat: ConfigOf[Remat] = incidental(KeepAll.Config())
        unroll: int = incidental(1)

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        require_positive(config, "num_layers", "unroll")
        layer: Any = config.layer.clone(width=config.width).build()  # a Layer, and a Module too
        self.layer = repeated(layer, config.num_layers)
        in_loop = config.unroll < config.num_layers
        self.around = functools.partial(config.remat.build().around, in_loop=in_loop)
        self.unroll = config.unroll

    def __call__(self, x_BSE: jax.Array, places: Places) -> jax.Array:
        """Maps [B, S, E] to [B, S, E]."""

        def body(x_BSE: jax.Array, _: None) -> tuple[jax.Array, None]:
            return self.layer(x_BSE, places), None

        return scan(self.layer, body, x_BSE, unroll=self.unroll, around=self.around)[0]


class Pattern(Module):
    """Several layers in a row, as one layer; a stack of a pattern is a hybrid model."""

    class Config(Module.Config["Pattern"]):
        """The width is set by the parent."""

        width: int = REQUIRED
        layers: tuple[ConfigOf[Layer], ...] = REQUIRED

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        if not config.layers:
            raise ConfigError(f"{config.locate('layers')}: expected at least one layer, got none.")
        self.layers = [layer.clone(width=config.width).build() for layer in config.layers]

    def __call__(self, x_BSE: jax.Array, places: Places) -> jax.Array:
        """Applies the layers in order."""
        for layer in self.layers:
            x_BSE = layer(x_BSE, places)
        return x_BSE
