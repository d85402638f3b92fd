"""Hybrid models: a component replaced in most layers of a decoder, and kept in some."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from dovetail.config import Config, ConfigError, replace, select
from dovetail.layers.decoder import Decoder
from dovetail.layers.stack.stack import change_layers, layers_of

C = TypeVar("C", bound=Config[Any])


def replace_but_every(config: C, old: Any, new: Callable[[Any], Config[Any]], every: int) -> C:
    """Returns a tree in which `new` replaces `old` in the layers of every decoder, except some.

    Args:
        config: the tree; it is not changed.
        old: the kind to replace.
        new: from the old config to the new one.
        every: every `every`-th layer that has an `old` keeps it; 0 means none does.
    """
    if every < 0 or every == 1:
        raise ConfigError(f"every: expected 0 (replace in all layers), or 2 or more, got {every}.")

    def changed(decoder: Decoder.Config) -> Decoder.Config:
        layers = enumerate(layers_of(decoder.stack))
        having = [index for index, layer in layers if select(layer, old).found]
        swapped = [index for count, index in enumerate(having, 1) if not every or count % every]
        stack = change_layers(decoder.stack, swapped, lambda layer: replace(layer, old, new))
        return decoder.set(stack=stack)

    return replace(config, Decoder, changed)
