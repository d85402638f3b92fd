"""Hybrid models: a component replaced in most layers of a decoder, and kept in some."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from dovetail.config import Config, ConfigError, replace, select
from dovetail.layers.decoder import Decoder
from dovetail.layers.stack.stack import Stack, arrange, layers_of

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
        return decoder.set(stack=_changed(decoder.stack, old, new, every))

    return replace(config, Decoder, changed)


def _changed(stack: Any, old: Any, new: Callable[[Any], Config[Any]], every: int) -> Config[Any]:
    layers = layers_of(stack)
    having = [index for index, layer in enumerate(layers) if select(layer, old).found]
    swapped = [index for count, index in enumerate(having, 1) if not every or count % every]
    # Replace in each distinct object once: equal layers that are one object compare fast.
    kinds = {id(layers[index]): layers[index] for index in swapped}
    made = {key: replace(layer, old, new) for key, layer in kinds.items()}
    for index in swapped:
        layers[index] = made[id(layers[index])]
    return _with_remat(arrange(layers), stack)


def _with_remat(arranged: Config[Any], stack: Any) -> Config[Any]:
    """Inherits the remat policy of the first stack, if it is set."""
    first: Any = next(iter(select(stack, Stack)), None)
    has_remat = first is not None and first.is_set("remat")
    return select(arranged, Stack).set(remat=first.remat) if has_remat else arranged
