"""Hybrids: a part swapped in most layers of a model, and left as it is in some."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from dovetail.config import Config, ConfigError, replace, select
from dovetail.layers.decoder import Decoder
from dovetail.layers.stack.stack import Stack, arrange, layers_of

C = TypeVar("C", bound=Config[Any])


def replace_but_every(config: C, old: Any, new: Callable[[Any], Config[Any]], every: int) -> C:
    """Returns a tree in which every decoder's layers have `new` for `old`, but for some.

    Args:
        config: the tree; it is not changed.
        old: the kind that is swapped.
        new: from the old config to the new one.
        every: of the layers that have an `old`, each so-manieth keeps it; 0: none does.
    """
    if every < 0 or every == 1:
        raise ConfigError(
            f"every: expected 0 (no layer stays as it is), or 2 or more, got {every}."
        )

    def changed(decoder: Decoder.Config) -> Decoder.Config:
        return decoder.set(stack=_changed(decoder.stack, old, new, every))

    return replace(config, Decoder, changed)


def _changed(stack: Any, old: Any, new: Callable[[Any], Config[Any]], every: int) -> Config[Any]:
    layers = layers_of(stack)
    having = [index for index, layer in enumerate(layers) if select(layer, old).found]
    swapped = [index for count, index in enumerate(having, 1) if not every or count % every]
    # Once a kind: equal layers that are one object are found at once.
    kinds = {id(layers[index]): layers[index] for index in swapped}
    made = {key: replace(layer, old, new) for key, layer in kinds.items()}
    for index in swapped:
        layers[index] = made[id(layers[index])]
    return _with_remat(arrange(layers), stack)


def _with_remat(arranged: Config[Any], stack: Any) -> Config[Any]:
    """Keeps what the first loop said of the backward pass."""
    first: Any = next(iter(select(stack, Stack)), None)
    is_said = first is not None and first.is_set("remat")
    return select(arranged, Stack).set(remat=first.remat) if is_said else arranged
