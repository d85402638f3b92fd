"""A run's parameters, wherever they are: in its newest checkpoint, or else in imported weights.

`weights/` in a run folder holds safetensors files whose arrays are named by parameter path and
shaped as the model has them, stacks whole. Each process reads only the slices of its own shards.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np

from dovetail.config import ConfigError
from dovetail.runtime.checkpointer import Checkpointer, check_wanted
from dovetail.runtime.run_folder import RunFolder
from dovetail.runtime.safetensors import Array, SafetensorsFile

Wanted = Mapping[str, jax.ShapeDtypeStruct]


class StoredWeights:
    """The arrays of a `weights/` folder, by path. Opening reads only the headers."""

    def __init__(self, folder: Path) -> None:
        """Opens every file of the folder."""
        self.folder = folder
        self._files: dict[str, SafetensorsFile] = {}
        for path in sorted(folder.glob("*.safetensors")):
            file = SafetensorsFile(path)
            for name in file.entries:
                if name in self._files:
                    raise ConfigError(f"{name} is both in {self._files[name].path} and in {path}.")
                self._files[name] = file

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """The shape of every array."""
        return {name: file.entries[name].shape for name, file in self._files.items()}

    @property
    def dtypes(self) -> dict[str, np.dtype[Any]]:
        """The type of every array, as stored."""
        return {name: file.entries[name].dtype for name, file in self._files.items()}

    def array(self, path: str) -> Array:
        """Returns an array that reads from disk when it is looked at."""
        return self._files[path].array(path)

    def part(self, path: str, index: tuple[int, ...]) -> Array:
        """Returns what stands at a place along an array's first axes, read into memory."""
        return self._files[path].read(path, index)

    def read(self, like: Wanted) -> dict[str, jax.Array]:
        """Returns the wanted arrays that are there, in the wanted type, each on its shards."""
        shapes = self.shapes
        check_wanted(self.folder, like, shapes)
        return {path: _placed(self.array(path), like[path]) for path in like if path in shapes}


def has_parameters(folder: RunFolder) -> bool:
    """Says whether a run has parameters to begin from."""
    return bool(_checkpointer(folder).steps()) or any(folder.weights.glob("*.safetensors"))


def read_parameters(
    folder: RunFolder, like: Wanted, checkpointer: Any = None
) -> tuple[int, dict[str, jax.Array]] | None:
    """Returns (step, arrays) of a run's newest parameters; None if there are none yet.

    What is wanted but not there is left out. Imported weights are step 0.

    Args:
        folder: the run.
        like: the wanted parameters and variables by path, as shapes, types and shardings.
        checkpointer: the run's own, where it has another than the usual one.
    """
    found = _checkpointer(folder, checkpointer).restore_parameters(like)
    if found is not None:
        return found
    weights = StoredWeights(folder.weights)
    return (0, weights.read(like)) if weights.shapes else None


def _checkpointer(folder: RunFolder, checkpointer: Any = None) -> Any:
    checkpointer = checkpointer or Checkpointer.Config().build()
    checkpointer.open(folder.checkpoints)
    return checkpointer


def _placed(stored: Array, like: jax.ShapeDtypeStruct) -> jax.Array:
    """Makes an array of which each device holds its shard, read from disk by itself."""
    dtype = np.dtype(like.dtype)
    sharding = like.sharding or jax.sharding.SingleDeviceSharding(jax.local_devices()[0])

    @functools.lru_cache(maxsize=1)  # copies of the same shard are asked for one after another
    def read(bounds: tuple[tuple[int, int], ...]) -> Array:
        part = stored[tuple(slice(*pair) for pair in bounds)]
        return np.asarray(part, dtype=dtype, order="C")

    def callback(index: tuple[slice, ...] | None) -> Array:
        pairs = zip(index or (), stored.shape, strict=True)
        return read(tuple(part.indices(size)[:2] for part, size in pairs))

    return jax.make_array_from_callback(stored.shape, sharding, callback, dtype=dtype)
