"""with_kv_cache(): the config of a trained model with KV caches, ready to decode."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from dovetail.config import Config, ConfigError, replace, select, visit
from dovetail.kernels.attention import Mask
from dovetail.layers import HasDecodingForm, NoKVCache, TrainingCache, UncachedKV

C = TypeVar("C", bound=Config[Any])


def with_kv_cache(model: C, length: int, cache: Config[Any] | None = None) -> C:
    """Returns the config of the same model with caches for decoding.

    Every `TrainingCache`, which stores nothing, is replaced by its decoding cache: KV caches and
    recurrent states. Every component with a form for decoding (`HasDecodingForm`) is replaced by
    that form. Neither adds or removes parameters, so the trained ones fit.

    Args:
        model: the config of the trained model. It is not modified.
        length: the capacity of the caches, in tokens per sequence.
        cache: replaces every `NoKVCache`; it has a field `length`. Contiguous by default.
    """
    if length < 1:
        raise ConfigError(f"length: a KV cache holds at least 1 token, got {length}.")
    if not any(isinstance(found, TrainingCache) for _, found in visit(model)):
        raise ConfigError(
            f"{type(model).display_name()}: this config has no NoKVCache to replace by a KV cache. "
            "Pass the config of the trained model, in which every layer that mixes tokens along "
            "the sequence has `cache=NoKVCache.Config()` or another cache that stores nothing."
        )
    _check_masks(model)
    if cache is not None and select(model, NoKVCache).found:
        model = replace(model, NoKVCache, cache.clone(length=length))
    model = _replace_all(model, TrainingCache, lambda found: found.decoding_cache(length))
    return _replace_all(model, HasDecodingForm, lambda found: found.for_decoding())


def _replace_all(model: C, protocol: type, new: Callable[[Any], Config[Any]]) -> C:
    """Replaces every config that satisfies a protocol."""
    reached = (found for _, found in visit(model, opaque=False))
    kinds = {type(found) for found in reached if isinstance(found, protocol)}
    for kind in sorted(kinds, key=lambda kind: kind.__qualname__):
        model = replace(model, kind, new)
    return model


def _check_masks(model: Config[Any]) -> None:
    """Raises ConfigError for a mask that is not causal, beside a cache that decoding replaces."""
    outermost, configs = "", dict(visit(model, opaque=False))
    # An encoder runs once, on its whole sequence.
    encoders = {
        path.rpartition(".")[0]
        for path, found in configs.items()
        if isinstance(found, UncachedKV.Config)
    }
    for path, found in configs.items():
        if outermost and path.startswith(f"{outermost}."):
            continue  # a component of a mask that was checked as a whole
        built = type(found).builds()
        if built is None or not issubclass(built, Mask) or path.rpartition(".")[0] in encoders:
            continue
        outermost = path
        mask: Mask = found.build()
        if not mask.causal:
            raise ConfigError(
                f"{path}: {mask} lets tokens attend to later ones, so this model cannot be decoded "
                "token by token. Use a causal mask."
            )
