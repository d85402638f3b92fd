"""Stacks: layers that run as a scan, with their parameters stacked along a leading axis."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax

from dovetail.config import REQUIRED, Config, ConfigError, ConfigOf, incidental, visit
from dovetail.layers.checks import require_positive
from dovetail.layers.context import TokenContext
from dovetail.layers.interfaces import Layer
from dovetail.layers.stack.blocks import TransformerBlock
from dovetail.module import Module, repeated, scan
from dovetail.parallel import Remat, SaveAll, tag


class Stack(Module):
    """Scans over `num_layers` copies of a layer, each with its own slice of the parameters.

    Unrolling does not change the layout of the parameters: `unroll=num_layers` gives straight-line
    code. A stack is itself a layer, so a `Pattern` can hold several stacks.
    """

    class Config(Module.Config["Stack"]):
        """The width is set by the parent."""

        width: int = REQUIRED
        num_layers: int = REQUIRED
        layer: ConfigOf[Layer] = TransformerBlock.Config()
        remat: ConfigOf[Remat] = incidental(SaveAll.Config())
        unroll: int = incidental(1)
        # The logical axis along which the parameters are stacked.
        axis: str = incidental("layers")

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        require_positive(config, "num_layers", "unroll")
        layer: Any = config.layer.build(width=config.width)  # a Layer, and a Module too
        self.layer = self._declare_layers(layer, config.num_layers, config.axis)
        in_loop = config.unroll < config.num_layers
        self.around = functools.partial(config.remat.build().wrap, in_loop=in_loop)
        self.unroll = config.unroll

    # The length of the scan if the layer is not declared as repeated.
    _times: int | None = None

    def _declare_layers(self, layer: Any, count: int, axis: str) -> Any:
        """Declares the parameters of all layers; a subclass may share them."""
        return repeated(layer, count, axis)

    def __call__(self, x: Any, context: TokenContext, first: Any = 0) -> Any:
        """Applies the layers in order; `x` is the carry of the scan.

        In a pipeline stage, `first` is the index of its first layer in the model's stack.
        """

        def body(x: Any, _: None) -> tuple[Any, None]:
            x = jax.tree.map(lambda leaf: tag(leaf, "layer_input"), x)
            return self.layer(x, context), None

        loop: dict[str, Any] = {"unroll": self.unroll, "around": self.around, "times": self._times}
        return scan(self.layer, body, x, first=first, **loop)[0]


class Pattern(Module):
    """Several layers in sequence, as one layer. A stack of a pattern is a hybrid model."""

    class Config(Module.Config["Pattern"]):
        """The width is set by the parent."""

        width: int = REQUIRED
        layers: tuple[ConfigOf[Layer], ...] = REQUIRED

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        if not config.layers:
            raise ConfigError(f"{config.locate('layers')}: expected at least one layer, got none.")
        self.layers = [layer.build(width=config.width) for layer in config.layers]

    def __call__(self, x: Any, context: TokenContext) -> Any:
        """Applies the layers in order."""
        for layer in self.layers:
            x = layer(x, context)
        return x


class Identity(Module):
    """A layer that returns its input."""

    class Config(Module.Config["Identity"]):
        """The width is set by the parent."""

        width: int = REQUIRED

    def __call__(self, x: Any, context: TokenContext) -> Any:
        """Returns its input."""
        return x


def arrange(layers: Sequence[Config[Any]]) -> Config[Any]:
    """Returns a stack of these layers, with a scan over whatever repeats.

    Equal layers become one `Stack`, alternating ones a stack of a `Pattern`, and runs of different
    layers (three dense layers, then experts) a pattern of stacks.
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

    A kind of stack that `arrange` does not make counts as one layer.
    """
    if type(stack) is Stack.Config:
        return layers_of(stack.layer) * stack.num_layers
    if type(stack) is Pattern.Config:
        return [layer for group in stack.layers for layer in layers_of(group)]
    return [stack]


def last_layer(stack: Any) -> Any:
    """Returns the config of the last single layer, in any kind of stack."""
    last = layers_of(stack)[-1]
    return last_layer(last.layer) if isinstance(last, Stack.Config) else last


def rearrange(stack: Any, change: Callable[[Any], Config[Any]], every: int = 1) -> Config[Any]:
    """Returns a stack of the same layers, with every `every`-th one changed."""
    layers = layers_of(stack)
    if not 1 <= every <= len(layers):
        raise ConfigError(
            f"every: expected 1 to {len(layers)} (the number of layers), got {every}."
        )
    return change_layers(stack, range(every - 1, len(layers), every), change)


def change_layers(
    stack: Any, indices: Sequence[int], change: Callable[[Any], Config[Any]]
) -> Config[Any]:
    """Returns a stack of the same layers, with those at some indices changed.

    The new stacks inherit the remat policy of the first one, if it is set.
    """
    layers = layers_of(stack)
    # Change each distinct object once: equal layers that are one object compare fast.
    kinds = {id(layers[index]): layers[index] for index in indices}
    changed = {key: change(layer) for key, layer in kinds.items()}
    for index in indices:
        layers[index] = changed[id(layers[index])]
    stacks = [found for _, found in visit(stack) if isinstance(found, Stack.Config)]
    has_remat = bool(stacks) and stacks[0].is_set("remat")
    return _with_remat(arrange(layers), stacks[0]) if has_remat else arrange(layers)


def _with_remat(stack: Any, old: Stack.Config) -> Config[Any]:
    if isinstance(stack, Pattern.Config):
        return stack.clone(layers=tuple(_with_remat(each, old) for each in stack.layers))
    return stack.clone(remat=old.remat)


def _repeats(layers: list[Any], period: int) -> tuple[int, int]:
    """Returns how often the first `period` layers repeat, and how many layers that covers.

    A period of several layers that does not repeat covers none: it would not be a scan.
    """
    count = 1
    while layers[count * period : (count + 1) * period] == layers[:period]:
        count += 1
    return count, count * period if count > 1 or period == 1 else 0


class SharedStack(Stack):
    """Applies one layer `num_layers` times (ALBERT, https://arxiv.org/abs/1909.11942).

    All iterations share parameters and variables; each has its own cache.
    """

    def _declare_layers(self, layer: Any, count: int, axis: str) -> Any:
        self._times = count
        return layer
