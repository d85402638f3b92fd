"""Trainable and frozen parameters: patterns by path, down to single layers of a stack."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

import jax.numpy as jnp
import numpy as np

from dovetail.config import ConfigError, did_you_mean
from dovetail.learner.state import Arrays
from dovetail.module import ParameterSpec

_EXCEPT = "!"  # prefix of a pattern that unfreezes


@dataclass(frozen=True)
class TrainableParameters:
    """The trainable parameters, with masks for partly frozen stacks."""

    specs: dict[str, ParameterSpec]
    """The specs of the trainable parameters, sorted by path."""
    masks: dict[str, np.ndarray]
    """For partly frozen stacks: True where a layer is trainable, shaped to broadcast."""

    def partition(self, params: Arrays) -> tuple[Arrays, Arrays]:
        """Returns (trainable, frozen) parameters; a partly frozen stack is among the first."""
        trainable = {path: params[path] for path in self.specs}
        frozen = {path: value for path, value in params.items() if path not in self.specs}
        return trainable, frozen

    def mask_frozen(self, values: Arrays, otherwise: Arrays | None = None) -> Arrays:
        """Returns the values, with those of frozen layers replaced by `otherwise` (None: zero)."""
        masked = {
            # `where`, not a multiplication: it must not propagate a frozen layer's NaN.
            path: jnp.where(mask, values[path], 0 if otherwise is None else otherwise[path])
            for path, mask in self.masks.items()
        }
        return {**values, **masked}

    def mask_extra(self, extra: Any) -> Any:
        """Returns an extra; one with an array for each parameter has zeros for frozen layers."""
        by_path = isinstance(extra, dict) and set(extra) == set(self.specs)
        return self.mask_frozen(extra) if by_path else extra


def select_trainable(
    specs: Mapping[str, ParameterSpec],
    frozen: tuple[str, ...],
    also_frozen: Callable[[str, int], list[bool]] | None = None,
) -> TrainableParameters:
    """Returns the parameters that no pattern in `frozen` freezes.

    A pattern (`*` also matches `/`) is matched against the path of each layer's array, such as
    `decoder/stack/layer/3/norm/scale`, and against the path of the stacked array, without the
    number. The prefix `!` unfreezes. The last pattern that matches decides: ("*", "!*/lora_a")
    freezes everything but lora_a. `also_frozen` tells, for a path and its number of layers, which
    layers are frozen whatever the patterns say.
    """
    unmatched = set(frozen)
    trainable: dict[str, ParameterSpec] = {}
    masks: dict[str, np.ndarray] = {}
    for path, spec in sorted(specs.items()):
        if not frozen and also_frozen is None:
            trainable[path] = spec
            continue
        is_trainable = []
        for layer_path in spec.layer_paths(path):
            hits = [p for p in frozen if path_matches(p.removeprefix(_EXCEPT), layer_path, path)]
            unmatched -= set(hits)
            is_trainable.append(not hits or hits[-1].startswith(_EXCEPT))
        if also_frozen is not None:
            held = also_frozen(path, len(is_trainable))
            is_trainable = [t and not h for t, h in zip(is_trainable, held, strict=True)]
        if any(is_trainable):
            trainable[path] = spec
        if any(is_trainable) and not all(is_trainable):
            ones = (1,) * len(spec.layer_shape)
            masks[path] = np.array(is_trainable).reshape(*spec.shape[: spec.stacked], *ones)
    _check(specs, frozen, unmatched, trainable)
    return TrainableParameters(trainable, masks)


def path_matches(pattern: str, *paths: str) -> bool:
    """Returns whether a pattern matches one of the paths; `*` also matches `/`."""
    return any(fnmatchcase(path, pattern) for path in paths)


def _check(
    specs: Mapping[str, ParameterSpec],
    frozen: tuple[str, ...],
    unmatched: set[str],
    trainable: Mapping[str, ParameterSpec],
) -> None:
    if unmatched:
        known = {path for stack, spec in specs.items() for path in spec.layer_paths(stack)}
        pattern = min(unmatched)
        raise ConfigError(
            f"learner.frozen: the pattern {pattern!r} matches no parameter. "
            f"{did_you_mean(pattern, known)} `*` matches any characters, also '/'."
        )
    if not trainable:
        what = f"learner.frozen: {list(frozen)} freezes" if frozen else "learner.groups freezes"
        raise ConfigError(f"{what} every parameter: none is left to train.")
