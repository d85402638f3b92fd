"""Which parameters are trained: patterns by path, down to single layers of a stack."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase

import jax.numpy as jnp
import numpy as np

from dovetail.config import ConfigError, did_you_mean
from dovetail.learner.state import Arrays
from dovetail.module import ParameterSpec

_EXCEPT = "!"  # begins a pattern of what is not frozen


@dataclass(frozen=True)
class Trained:
    """The parameters that are trained, wholly or in part."""

    specs: dict[str, ParameterSpec]
    """The specs of those parameters, sorted by path."""
    masks: dict[str, np.ndarray]
    """For stacks of which some layers are frozen: True for the others, shaped to broadcast."""

    def split(self, params: Arrays) -> tuple[Arrays, Arrays]:
        """Returns (trained, wholly frozen) parameters."""
        trained = {path: params[path] for path in self.specs}
        fixed = {path: value for path, value in params.items() if path not in self.specs}
        return trained, fixed

    def only_trained(self, values: Arrays, otherwise: Arrays | None = None) -> Arrays:
        """Returns the values, with those of frozen layers taken from `otherwise` (None: zero)."""
        masked = {
            # `where`, not a product: a frozen layer's NaN must not get through.
            path: jnp.where(mask, values[path], 0 if otherwise is None else otherwise[path])
            for path, mask in self.masks.items()
        }
        return {**values, **masked}


def select_trained(specs: Mapping[str, ParameterSpec], frozen: tuple[str, ...]) -> Trained:
    """Returns what is left to train once everything that a pattern matches is frozen.

    A pattern (`*` also crosses `/`) is held against the path of each layer's array, such as
    `decoder/stack/layer/3/norm/scale`, and against the path of the whole stack, without the number.
    One that begins with `!` says what is trained all the same. Of the patterns that match, the last
    decides: ("*", "!*/lora_a") freezes everything but what is called lora_a.
    """
    unmatched = set(frozen)
    trained: dict[str, ParameterSpec] = {}
    masks: dict[str, np.ndarray] = {}
    for path, spec in sorted(specs.items()):
        if not frozen:
            trained[path] = spec
            continue
        is_trained = []
        for layer_path in spec.layer_paths(path):
            hits = [p for p in frozen if _matches(p, layer_path, path)]
            unmatched -= set(hits)
            is_trained.append(not hits or hits[-1].startswith(_EXCEPT))
        if any(is_trained):
            trained[path] = spec
        if any(is_trained) and not all(is_trained):
            ones = (1,) * len(spec.layer_shape)
            masks[path] = np.array(is_trained).reshape(*spec.shape[: spec.stacked], *ones)
    _check(specs, frozen, unmatched, trained)
    return Trained(trained, masks)


def _matches(pattern: str, *paths: str) -> bool:
    bare = pattern.removeprefix(_EXCEPT)
    return any(fnmatchcase(path, bare) for path in paths)


def _check(
    specs: Mapping[str, ParameterSpec],
    frozen: tuple[str, ...],
    unmatched: set[str],
    trained: Mapping[str, ParameterSpec],
) -> None:
    if unmatched:
        known = {path for stack, spec in specs.items() for path in spec.layer_paths(stack)}
        pattern = min(unmatched)
        raise ConfigError(
            f"learner.frozen: the pattern {pattern!r} matches no parameter. "
            f"{did_you_mean(pattern, known)} `*` stands for any characters, also across '/'."
        )
    if not trained:
        raise ConfigError(
            f"learner.frozen: {list(frozen)} freezes every parameter, so nothing is left to train."
        )
