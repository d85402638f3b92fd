"""with_memory(): the model as it was trained, with something to remember earlier tokens by."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from dovetail.config import Config, ConfigError, replace, select, visit
from dovetail.kernels.attention import Mask
from dovetail.layers import DecodesOtherwise, Forgetful, NoMemory

C = TypeVar("C", bound=Config[Any])


def with_memory(model: C, length: int, memory: Config[Any] | None = None) -> C:
    """Returns the config of the same model, decoding: what kept nothing remembers.

    Every `Forgetful` config names the memory that stands in its place. Parts that decode in another
    form than they train in (`DecodesOtherwise`) are swapped for it. No memory has parameters, and
    no such form has others, so the trained ones fit as they are.

    Args:
        model: the config that was trained; it is not changed.
        length: how many tokens of each sequence fit.
        memory: what keeps keys and values in place of every `NoMemory`; it has a field `length`.
            Contiguous, unless it is given.
    """
    if length < 1:
        raise ConfigError(f"length: a memory holds at least 1 token, got {length}.")
    if not any(isinstance(found, Forgetful) for _, found in visit(model)):
        raise ConfigError(
            f"{type(model).display_name()}: there is no NoMemory in this config to replace by a "
            "memory. Give the config that was trained, in which every part that mixes tokens along "
            "the sequence has `memory=NoMemory.Config()`, or another that keeps nothing."
        )
    _check_masks(model)
    if memory is not None and select(model, NoMemory).found:
        model = replace(model, NoMemory, memory.clone(length=length))
    model = _swapped(model, Forgetful, lambda found: found.remembering(length))
    return _swapped(model, DecodesOtherwise, lambda found: found.for_decoding())


def _swapped(model: C, protocol: type, new: Callable[[Any], Config[Any]]) -> C:
    """Swaps every config that names another to stand in its place."""
    reached = (found for _, found in visit(model, whole=False))
    kinds = {type(found) for found in reached if isinstance(found, protocol)}
    for kind in sorted(kinds, key=lambda kind: kind.__qualname__):
        model = replace(model, kind, new)
    return model


def _check_masks(model: Config[Any]) -> None:
    """Refuses masks that let a token see later ones: when decoding, those do not exist yet."""
    outermost = ""
    for path, found in visit(model, whole=False):
        if outermost and path.startswith(f"{outermost}."):
            continue  # part of a mask that was judged as a whole
        built = type(found).builds()
        if built is None or not issubclass(built, Mask):
            continue
        outermost = path
        mask: Mask = found.build()
        if not mask.causal:
            raise ConfigError(
                f"{path}: {mask} lets tokens see later ones, so this model cannot be decoded token "
                "by token. Use a causal mask."
            )
