"""Stacks: the same layer many times, as one array with a leading axis and one loop."""

from __future__ import annotations

import jax

from dovetail.config import REQUIRED, ConfigOf, incidental
from dovetail.layers.interfaces import Layer, Places
from dovetail.layers.transformer import TransformerBlock
from dovetail.module import Module, repeated, scan
from dovetail.parallel import KeepAll, Remat


class Stack(Module):
    """Applies a layer `num_layers` times, each time with its own slice of the parameters.

    "Unrolled" is a setting of the loop, not another layout: `unroll=num_layers` gives straight code.
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
        self.layer = repeated(config.layer.clone(width=config.width).build(), config.num_layers)
        self.remat = config.remat.build()
        self.unroll = config.unroll

    def __call__(self, x_BSE: jax.Array, places: Places) -> jax.Array:
        """Maps [B, S, E] to [B, S, E]."""

        def body(x_BSE: jax.Array, _: None) -> tuple[jax.Array, None]:
            return self.layer(x_BSE, places), None

        x_BSE, _ = scan(
            self.layer, body, x_BSE, unroll=self.unroll, around=self.remat.around
        )
        return x_BSE


class Pattern(Module):
    """Several layers in a row, as one layer; a stack of a pattern is a hybrid model."""

    class Config(Module.Config["Pattern"]):
        """The width is set by the parent."""

        width: int = REQUIRED
        layers: tuple[ConfigOf[Layer], ...] = REQUIRED

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self.layers = [layer.clone(width=config.width).build() for layer in config.layers]

    def __call__(self, x_BSE: jax.Array, places: Places) -> jax.Array:
        """Applies the layers in order."""
        for layer in self.layers:
            x_BSE = layer(x_BSE, places)
        return x_BSE
