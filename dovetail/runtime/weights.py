"""Imported parameters, as safetensors files in the folder `weights/` of a run.

Their arrays are named by parameter path and have the shapes of the model, with the layers of a
stack in one array. Each process reads only the slices of its own shards.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np

from dovetail.config import ConfigError
from dovetail.runtime.checkpointer import check_compatible
from dovetail.runtime.safetensors import Array, SafetensorsFile

ArraySpecs = Mapping[str, jax.ShapeDtypeStruct]


class StoredWeights:
    """The arrays of a `weights/` folder, by path. Opening reads only the headers."""

    def __init__(self, folder: Path) -> None:
        """Opens every file of the folder."""
        self.folder = folder
        self._files: dict[str, SafetensorsFile] = {}
        for path in sorted(folder.glob("*.safetensors")):
            file = SafetensorsFile(path)
            for name in file.tensors:
                if name in self._files:
                    raise ConfigError(f"{name} is both in {self._files[name].path} and in {path}.")
                self._files[name] = file

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """The shape of every array."""
        return {name: file.tensors[name].shape for name, file in self._files.items()}

    @property
    def dtypes(self) -> dict[str, np.dtype[Any]]:
        """The dtype of every array, as stored."""
        return {name: file.tensors[name].dtype for name, file in self._files.items()}

    def array(self, path: str) -> Array:
        """Returns an array whose data is read from disk on access."""
        return self._files[path].array(path)

    def read_at(self, path: str, index: tuple[int, ...]) -> Array:
        """Returns a copy of the subarray at an index along the first axes."""
        return self._files[path].read(path, index)

    def read(self, like: ArraySpecs) -> dict[str, jax.Array]:
        """Returns those arrays of `like` that are stored, with its dtypes and shardings."""
        shapes = self.shapes
        check_compatible(self.folder, like, shapes)
        return {path: _sharded(self.array(path), like[path]) for path in like if path in shapes}


def _sharded(stored: Array, like: jax.ShapeDtypeStruct) -> jax.Array:
    """Makes a sharded array; each device's shard is read from disk separately."""
    dtype = np.dtype(like.dtype)
    sharding = like.sharding or jax.sharding.SingleDeviceSharding(jax.local_devices()[0])

    @functools.lru_cache(maxsize=1)  # replicas of a shard are requested one after another
    def read(bounds: tuple[tuple[int, int], ...]) -> Array:
        shard = stored[tuple(slice(*pair) for pair in bounds)]
        return np.asarray(shard, dtype=dtype, order="C")

    def callback(index: tuple[slice, ...] | None) -> Array:
        pairs = zip(index or (), stored.shape, strict=True)
        return read(tuple(bounds.indices(size)[:2] for bounds, size in pairs))

    return jax.make_array_from_callback(stored.shape, sharding, callback, dtype=dtype)
