"""Reads arrays from shard files, on any host or in an object store."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any, Protocol, Self

import jax
import jax.numpy as jnp
import numpy as np

from dovetail.config import Error
from dovetail.runtime.checkpoints.manifest import DamagedCheckpointError, SavedArray
from dovetail.runtime.checkpoints.shards.shard_file import Shard, ShardIndex, read_shard

_LOG = logging.getLogger("dovetail")

_CACHED_SHARDS = 8

Range = tuple[tuple[int, int], ...]


class UnreachableError(Exception):
    """A shard file cannot be reached now; another copy may be reachable."""


class ShardSource(Protocol):
    """A shard file, or a copy of one.

    Reading raises a DamagedCheckpointError, an UnreachableError or an OSError.
    """

    @property
    def index(self) -> ShardIndex:
        """The index of the file."""
        ...

    def read_shard(self, shard: Shard) -> np.ndarray:
        """Returns the elements of a shard; compares its checksums."""
        ...

    def close(self) -> None:
        """Closes the file."""
        ...


class ShardReader:
    """Reads one checkpoint."""

    def __init__(self, sources: Mapping[int, list[Any]]) -> None:
        """Takes the sources; opens nothing yet.

        Args:
            sources: by the process that wrote a file, its copies (ShardSource), best first; the
                processes whose files are nearest come first.
        """
        self._sources = {owner: list(copies) for owner, copies in sources.items()}
        self._opened = [source for copies in sources.values() for source in copies]
        self._by_path: dict[int, dict[str, list[Shard]]] = {}
        self._cache: dict[tuple[int, int], np.ndarray] = {}

    def array(self, path: str, saved: SavedArray, sharding: Any) -> jax.Array:
        """Returns an array with a sharding; each process reads only what its devices hold."""

        def part(index: tuple[slice, ...] | None) -> np.ndarray:
            assert index is not None
            wanted = tuple(
                slice(*s.indices(n))  # resolves None
                for s, n in zip(index, saved.shape, strict=True)
            )
            return self._part(path, saved, tuple((s.start, s.stop) for s in wanted))

        return jax.make_array_from_callback(saved.shape, sharding, part)

    def _part(self, path: str, saved: SavedArray, wanted: Range) -> np.ndarray:
        """Assembles a range of an array from all shards that overlap it."""
        shape = tuple(stop - start for start, stop in wanted)
        result = np.empty(shape, jnp.dtype(saved.dtype))
        left = result.size
        for owner in self._sources:
            if left == 0:
                break
            for shard in self._shards(owner, path):
                overlap = _overlap(wanted, shard)
                if overlap is not None:
                    into, from_ = overlap
                    result[into] = self._elements(owner, shard)[from_]
                    left -= result[into].size
        if left:
            raise DamagedCheckpointError(f"{left} elements of {path} are in no file")
        return result

    def _shards(self, owner: int, path: str) -> list[Shard]:
        """Returns the shards of an array in one file."""
        if owner not in self._by_path:
            by_path = self._by_path[owner] = {}
            for shard in self._use(owner, lambda source: source.index).shards:
                by_path.setdefault(shard.path, []).append(shard)
        return self._by_path[owner].get(path, [])

    def _elements(self, owner: int, shard: Shard) -> np.ndarray:
        """Returns the elements of a shard; replicas on several devices read it once."""
        key = (owner, shard.offset)
        if key not in self._cache:
            while len(self._cache) >= _CACHED_SHARDS:
                self._cache.pop(next(iter(self._cache)))
            self._cache[key] = self._use(owner, lambda source: source.read_shard(shard))
        return self._cache[key]

    def _use(self, owner: int, use: Any) -> Any:
        """Uses a file, or another copy of it if it is damaged or missing."""
        errors, sources = list[Exception](), self._sources[owner]
        while sources:
            try:
                return use(sources[0])
            except (DamagedCheckpointError, UnreachableError, OSError) as error:
                errors.append(error)
                if sources[1:]:
                    _LOG.warning("%s; trying another copy.", error)
                sources.pop(0)
        out_of_reach = [error for error in errors if isinstance(error, Error)]
        if out_of_reach:  # the store may be back later, so this is no damage
            raise out_of_reach[0]
        raise DamagedCheckpointError(
            str(errors[-1]) if errors else f"no copy of the shards of process {owner} is left"
        )

    def __enter__(self) -> Self:
        """Returns the reader."""
        return self

    def __exit__(self, *_: object) -> None:
        """Closes all files."""
        for source in self._opened:
            source.close()


def shard_of(content: bytes, shard: Shard, name: str) -> np.ndarray:
    """Returns the elements of a shard whose bytes were fetched at once; `name` is for messages."""
    view = memoryview(content)

    def read(offset: int, length: int) -> bytes:
        begin = offset - shard.offset
        return bytes(view[begin : begin + length])

    return read_shard(read, shard, name)


def _overlap(wanted: Range, shard: Shard) -> tuple[Any, Any] | None:
    """Returns the slices of an overlap: in the wanted range, and in the shard."""
    into, from_ = [], []
    for (begin, end), low, high in zip(wanted, shard.start, shard.stop, strict=True):
        first, last = max(begin, low), min(end, high)
        if first >= last:
            return None
        into.append(slice(first - begin, last - begin))
        from_.append(slice(first - low, last - low))
    return tuple(into), tuple(from_)
