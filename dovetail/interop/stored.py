"""A run's parameters, a few at a time: what an export reads."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from dovetail.config import ConfigError
from dovetail.module import Slot, Spec, parameter_specs, variable_specs
from dovetail.runtime import RunFolder, StoredWeights, read_parameters

SlotReader = Callable[[Slot], Any]


@dataclass(frozen=True)
class StoredModel:
    """Where parameters come from.

    Attributes:
        step: of the training run that made them; 0 for imported ones.
        dtypes: their types as stored, by path.
        reader: given the paths that are wanted together, returns a function from a slot of theirs
            to its array.
    """

    step: int
    dtypes: Mapping[str, np.dtype[Any]]
    reader: Callable[[list[str]], SlotReader]


def stored_model(folder: RunFolder, model: Any) -> StoredModel:
    """Finds a run's newest parameters: its checkpoint's, or the imported ones."""
    variables = variable_specs(model)
    specs = {**parameter_specs(model), **variables}
    smallest = min(specs, key=lambda path: specs[path].size)
    found = read_parameters(folder, _structs(specs, [smallest]))
    if found is None:
        raise ConfigError(f"{folder.path} has neither a checkpoint nor imported weights to export.")
    step, weights = found[0], StoredWeights(folder.weights)
    if step or not weights.shapes:
        return _from_checkpoint(folder, specs, step)
    missing = sorted(specs.keys() - weights.shapes.keys() - variables.keys())
    if missing:
        raise ConfigError(f"{folder.weights} lacks the parameter {missing[0]}.")
    return StoredModel(0, weights.dtypes, lambda _: _part_of(weights))


def _part_of(weights: StoredWeights) -> SlotReader:
    return lambda slot: weights.part(slot.path, slot.index)


def _from_checkpoint(folder: RunFolder, specs: Mapping[str, Spec], step: int) -> StoredModel:
    """Reads whole stacks, as few at a time as are wanted together."""

    def reader(paths: list[str]) -> SlotReader:
        now, arrays = read_parameters(folder, _structs(specs, paths)) or (0, {})
        if now != step:  # somebody is training it: a model of two steps would be neither
            raise ConfigError(
                f"{folder.path} was at step {step} when this export began and is at {now} now. "
                "Export again, or when training has ended."
            )
        missing = [path for path in paths if path not in arrays]
        if missing:
            raise ConfigError(f"{folder.path}: its checkpoint lacks the parameter {missing[0]}.")
        whole = {path: np.asarray(array) for path, array in arrays.items()}
        return lambda slot: whole[slot.path][slot.index]

    dtypes = {path: np.dtype(spec.dtype) for path, spec in specs.items()}
    return StoredModel(step, dtypes, reader)


def _structs(specs: Mapping[str, Spec], paths: list[str]) -> dict[str, jax.ShapeDtypeStruct]:
    device = jax.sharding.SingleDeviceSharding(jax.local_devices(backend="cpu")[0])
    return {
        path: jax.ShapeDtypeStruct(specs[path].shape, specs[path].dtype, sharding=device)
        for path in paths
    }
