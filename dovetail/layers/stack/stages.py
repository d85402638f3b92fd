"""Pipeline stages: the longest stack of a model is the one that a pipeline splits."""

from __future__ import annotations

from typing import Any

from dovetail.config import Config, ConfigError
from dovetail.layers.stack.stack import Pattern, Stack

AXIS = "stage"
# The logical axes along which layers are stacked.
LAYER_AXES = (AXIS, "layers")


def in_stages(stack: Config[Any], num_stages: int = 1) -> Config[Any]:
    """Returns the stack of one pipeline stage; the axis of its longest stack is "stage".

    Args:
        stack: a stack, or a pattern of stacks.
        num_stages: how many stages the longest stack is split into.
    """
    if type(stack) is Pattern.Config:
        layers = list(stack.layers)
        longest = _longest(layers)
        if longest is not None:
            layers[longest] = in_stages(layers[longest], num_stages)
        return stack.clone(layers=tuple(layers))
    if not _is_splittable(stack):
        return stack
    count: int = stack.num_layers
    if count % num_stages:
        fits = [number for number in range(1, count + 1) if count % number == 0]
        raise ConfigError(
            f"{stack.locate('num_layers')}: {count} layers do not divide into {num_stages} "
            f"pipeline stages. They divide into {', '.join(map(str, fits))}."
        )
    return stack.clone(axis=AXIS, num_layers=count // num_stages)


def split_at_longest(stack: Any) -> tuple[list[Any], Any, list[Any]]:
    """Returns the layers before the longest stack, that stack, and the layers after it."""
    if type(stack) is not Pattern:
        return [], stack, []
    layers: list[Any] = list(stack.layers)
    longest = _longest([layer.config for layer in layers])
    if longest is None:
        return [], stack, []
    return layers[:longest], layers[longest], layers[longest + 1 :]


def _longest(layers: list[Any]) -> int | None:
    """Returns the index of the longest stack; one that is already a stage remains it."""
    stacks = [index for index, layer in enumerate(layers) if _is_splittable(layer)]
    stages = [index for index in stacks if layers[index].axis == AXIS]
    return max(stages or stacks, key=lambda index: layers[index].num_layers, default=None)


def _is_splittable(stack: Any) -> bool:
    # Not a subclass: layers that share their parameters cannot be split.
    return type(stack) is Stack.Config
