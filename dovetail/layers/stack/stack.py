"""Stacks: the same layer many times, as one array with a leading axis and one loop."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax

from dovetail.config import REQUIRED, Config, ConfigError, ConfigOf, incidental, visit
from dovetail.layers.checks import require_positive
from dovetail.layers.interfaces import Layer, Places
from dovetail.layers.stack.transformer import TransformerBlock
from dovetail.module import Module, repeated, scan
from dovetail.parallel import KeepAll, Remat, tag


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
        # The logical name of the axis that the layers' parameters are stacked along.
        axis: str = incidental("layers")

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        require_positive(config, "num_layers", "unroll")
        layer: Any = config.layer.build(width=config.width)  # a Layer, and a Module too
        self.layer = self._declared(layer, config.num_layers, config.axis)
        in_loop = config.unroll < config.num_layers
        self.around = functools.partial(config.remat.build().around, in_loop=in_loop)
        self.unroll = config.unroll

    # How often scan() is to run a layer that is not declared as repeated; None: it is.
    _times: int | None = None

    def _declared(self, layer: Any, count: int, axis: str) -> Any:
        """Says how the layers' parameters lie: each has its own."""
        return repeated(layer, count, axis)

    def __call__(self, x_BSE: jax.Array, places: Places, first: Any = 0) -> jax.Array:
        """Maps [B, S, E] to [B, S, E].

        Where this is a part of a longer stack, `first` is the number of its first layer there.
        """

        def body(x_BSE: jax.Array, _: None) -> tuple[jax.Array, None]:
            return self.layer(tag(x_BSE, "layer_input"), places), None

        loop: dict[str, Any] = {"unroll": self.unroll, "around": self.around, "times": self._times}
        return scan(self.layer, body, x_BSE, first=first, **loop)[0]


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
        self.layers = [layer.build(width=config.width) for layer in config.layers]

    def __call__(self, x_BSE: jax.Array, places: Places) -> jax.Array:
        """Applies the layers in order."""
        for layer in self.layers:
            x_BSE = layer(x_BSE, places)
        return x_BSE


def arrange(layers: Sequence[Config[Any]]) -> Config[Any]:
    """Returns the stack that applies these layers in order, with a loop over whatever repeats.

    Equal layers become one `Stack`; alternating ones a stack of a `Pattern`; what changes on the
    way (three dense layers, then experts) a pattern of stacks.
    """
    groups: list[Stack.Config] = []
    rest = list(layers)
    while rest:
        period = max(range(1, len(rest) + 1), key=lambda size: (_repeats(rest, size)[1], -size))
        count, covered = _repeats(rest, period)
        layer = rest[0] if period == 1 else Pattern.Config(layers=tuple(rest[:period]))
        groups.append(Stack.Config(num_layers=count, layer=layer))
        rest = rest[covered:]
    return groups[0] if len(groups) == 1 else Pattern.Config(layers=tuple(groups))


def layers_of(stack: Any) -> list[Any]:
    """Returns the config of each layer of a stack, in order: the inverse of `arrange`.

    A stack of another kind than `arrange` makes counts as one layer.
    """
    if type(stack) is Stack.Config:
        return layers_of(stack.layer) * stack.num_layers
    if isinstance(stack, Pattern.Config):
        return [layer for group in stack.layers for layer in layers_of(group)]
    return [stack]


def last_layer(stack: Any) -> Any:
    """Returns the config of the last single layer, whatever kind of stack it stands in."""
    last = layers_of(stack)[-1]
    return last_layer(last.layer) if isinstance(last, Stack.Config) else last


def rearrange(stack: Any, change: Callable[[Any], Config[Any]], every: int = 1) -> Config[Any]:
    """Returns a stack of the same layers in loops again, with each `every`-th one changed.

    What the first loop says of the backward pass (`remat`) the new loops say too.
    """
    layers = layers_of(stack)
    if not 1 <= every <= len(layers):
        raise ConfigError(
            f"every: expected 1 to {len(layers)}, as many layers as there are, got {every}."
        )
    # Once a kind: equal layers that are one object are found at once.
    kinds = {id(layer): layer for layer in layers[every - 1 :: every]}
    changed = {key: change(layer) for key, layer in kinds.items()}
    for index in range(every - 1, len(layers), every):
        layers[index] = changed[id(layers[index])]
    loops = [found for _, found in visit(stack) if isinstance(found, Stack.Config)]
    is_said = bool(loops) and loops[0].is_set("remat")
    return _with_remat(arrange(layers), loops[0]) if is_said else arrange(layers)


def _with_remat(stack: Any, old: Stack.Config) -> Config[Any]:
    if isinstance(stack, Pattern.Config):
        return stack.clone(layers=tuple(_with_remat(each, old) for each in stack.layers))
    return stack.clone(remat=old.remat)


def _repeats(layers: list[Any], period: int) -> tuple[int, int]:
    """Returns how often the first `period` layers come in a row, and how many that makes.

    What comes once makes none, unless it is a single layer: it would be no loop.
    """
    count = 1
    while layers[count * period : (count + 1) * period] == layers[:period]:
        count += 1
    return count, count * period if count > 1 or period == 1 else 0
