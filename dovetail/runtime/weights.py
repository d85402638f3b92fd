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
from dovetail.runtime.checkpoints.compatibility import check_compatible
from dovetail.runtime.digest import digests, read_digests
from dovetail.runtime.safetensors import Array, SafetensorsFile

ArraySpecs = Mapping[str, jax.ShapeDtypeStruct]


class StoredWeights:
    """The arrays of a `weights/` folder, by path. Opening reads only the headers."""

    def __init__(self, folder: Path) -> None:
        """Opens every file of the folder."""
        self.folder = folder
        self._files: dict[str, SafetensorsFile] = {}
        self._verified: set[str] = set()
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
        """Verifies and returns an array; its data is read from disk on access."""
        self._verify(path)
        return self._files[path].array(path)

    def read_at(self, path: str, index: tuple[int, ...]) -> Array:
        """Returns a copy of the subarray at an index along the first axes; verifies it first."""
        self._verify(path)
        return self._files[path].read(path, index)

    def read(self, like: ArraySpecs) -> dict[str, jax.Array]:
        """Returns the arrays of `like` that are stored, with its dtypes and shardings."""
        shapes = self.shapes
        check_compatible(self.folder, like, shapes)
        result = {}
        for path in like:
            if path not in shapes:
                continue
            if self._can_verify_on_devices(path, like[path]):
                self._verified.add(path)
            result[path] = _sharded(self.array(path), like[path])
        self._verify_on_devices(result)
        return result

    def _verify(self, path: str) -> None:
        """Reads an array, the first time, and compares it with its digest."""
        if path not in self._verified:
            self._files[path].verify(path)
            self._verified.add(path)

    def _can_verify_on_devices(self, path: str, like: Any) -> bool:
        """Returns whether an array keeps its stored values in the dtype of `like`."""
        stored, wanted = self.dtypes[path], np.dtype(like.dtype)
        return stored == wanted or (stored.itemsize, wanted) == (2, np.dtype(np.float32))

    def _verify_on_devices(self, arrays: Mapping[str, jax.Array]) -> None:
        """Compares digests; each process has read only its own shards."""
        infos = {path: self._files[path].tensors[path] for path in arrays}
        as_stored = {
            path: array.astype(infos[path].dtype)
            for path, array in arrays.items()
            if infos[path].digest and self._can_verify_on_devices(path, array)
        }
        for path, found in read_digests(digests(as_stored)).items():
            if found.sums != infos[path].digest:
                self._files[path].verify(path)  # says what is wrong
                raise ConfigError(
                    f"{path} in {self._files[path].path} was damaged when it was read."
                )


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
