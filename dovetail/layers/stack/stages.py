"""Stages: the longest stack of a model, which a pipeline splits, and what stands around it."""

from __future__ import annotations

from typing import Any

from dovetail.config import Config, ConfigError
from dovetail.layers.stack.stack import Pattern, Stack

AXIS = "stage"
# The axes along which layers stand.
LAYER_AXES = (AXIS, "layers")


def in_stages(stack: Config[Any], parts: int = 1) -> Config[Any]:
    """Returns a stack in which the longest one names its axis "stage".

    Args:
        stack: a stack, or a pattern of stacks.
        parts: how many parts it is in; each holds as many of its layers.
    """
    if isinstance(stack, Pattern.Config):
        layers = list(stack.layers)
        longest = _longest(layers)
        if longest is not None:
            layers[longest] = in_stages(layers[longest], parts)
        return stack.clone(layers=tuple(layers))
    if not _is_split(stack):
        return stack
    count: int = stack.num_layers
    if count % parts:
        fits = [number for number in range(1, count + 1) if count % number == 0]
        raise ConfigError(
            f"{stack.locate('num_layers')}: {count} layers do not divide into {parts} parts of a "
            f"pipeline. They divide into {', '.join(map(str, fits))}."
        )
    return stack.clone(axis=AXIS, num_layers=count // parts)


def around(stack: Any) -> tuple[list[Any], Any, list[Any]]:
    """Returns what comes before the longest stack, the stack itself, and what comes after."""
    if not isinstance(stack, Pattern):
        return [], stack, []
    layers: list[Any] = list(stack.layers)
    longest = _longest([layer.config for layer in layers])
    if longest is None:
        return [], stack, []
    return layers[:longest], layers[longest], layers[longest + 1 :]


def _longest(layers: list[Any]) -> int | None:
    """Returns which stack is the longest; one that is a part of it stays it, however short."""
    able = [index for index, layer in enumerate(layers) if _is_split(layer)]
    marked = [index for index in able if layers[index].axis == AXIS]
    return max(marked or able, key=lambda index: layers[index].num_layers, default=None)


def _is_split(stack: Any) -> bool:
    # Not a subclass: a stack whose layers share their parameters has none to split.
    return type(stack) is Stack.Config
