"""Reads arrays of a local checkpoint, from the files of this host or of its peers."""

from __future__ import annotations

import contextlib
import functools
import logging
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import jax
import jax.numpy as jnp
import numpy as np

from dovetail.runtime.checkpoints.local.shard_file import (
    OpenShardFile,
    Shard,
    ShardIndex,
    read_index,
    read_shard,
)
from dovetail.runtime.checkpoints.local.transfer import Peer, TransferError
from dovetail.runtime.checkpoints.manifest import NAME, DamagedCheckpointError, SavedArray

_LOG = logging.getLogger("dovetail")

_CACHED_SHARDS = 8

Range = tuple[tuple[int, int], ...]


def held_files(folder: Path, step: int, life: int, run: str) -> dict[str, Any]:
    """Returns which files of a checkpoint this host has, with an intact index of that save."""
    here, owners, processes = folder / f"{step}-{life}", [], 0
    for file in sorted(here.glob("*.shards")):
        with contextlib.suppress(DamagedCheckpointError, OSError, ValueError, KeyError):
            with OpenShardFile(file) as opened:
                about = opened.index.about
            if (about["run"], about["step"], about["life"]) == (run, step, life):
                owners.append(about["process"])
                processes = about["processes"]
    return {"owners": owners, "processes": processes, "manifest": (here / NAME).exists()}


class ShardReader:
    """Reads one checkpoint. Uses this host's files first, then copies of other processes."""

    def __init__(
        self,
        folder: Path,
        name: str,
        holders: Mapping[int, Sequence[int]],
        peers: Mapping[int, Peer],
    ) -> None:
        """Opens nothing yet.

        Args:
            folder: the folder of this process.
            name: the name of the checkpoint's folder in it.
            holders: by the process that wrote a file, the processes that can read it.
            peers: the other processes.
        """
        self._folder, self._name, self._holders, self._peers = folder, name, holders, peers
        self._sources: dict[int, list[_LocalSource | _PeerSource]] = {}
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
        """Puts the part of an array together from all shards that overlap it."""
        shape = tuple(stop - start for start, stop in wanted)
        result = np.empty(shape, jnp.dtype(saved.dtype))
        left = result.size
        for owner in self._owners():
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

    def _owners(self) -> Iterator[int]:
        """Yields the owners of files on this host first."""
        yield from sorted(self._holders, key=lambda owner: (not self._file(owner).exists(), owner))

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
        """Uses a file; if it is damaged or gone, another copy of it."""
        problems = []
        if owner not in self._sources:
            self._sources[owner] = self._copies(owner)
        sources = self._sources[owner]
        while sources:
            try:
                return use(sources[0])
            except (DamagedCheckpointError, TransferError, OSError) as error:
                problems.append(str(error))
                _LOG.warning("%s; trying another copy.", error)
                sources.pop(0)
        raise DamagedCheckpointError(
            problems[-1] if problems else f"no copy of the shards of process {owner} is left"
        )

    def _copies(self, owner: int) -> list[_LocalSource | _PeerSource]:
        name = self._relative(owner)
        remote = [
            _PeerSource(self._peers[index], name)
            for index in self._holders[owner]
            if index in self._peers
        ]
        here = self._file(owner)
        return [*([_LocalSource(here)] if here.exists() else []), *remote]

    def _file(self, owner: int) -> Path:
        return self._folder / self._relative(owner)

    def _relative(self, owner: int) -> str:
        return f"{self._name}/{owner}.shards"

    def __enter__(self) -> Self:
        """Returns the reader."""
        return self

    def __exit__(self, *_: object) -> None:
        """Closes all files."""
        for source in (source for sources in self._sources.values() for source in sources):
            source.close()


class _LocalSource:
    """A file of this host."""

    def __init__(self, file: Path) -> None:
        self._file = file

    @functools.cached_property
    def _opened(self) -> OpenShardFile:
        return OpenShardFile(self._file)

    @property
    def index(self) -> ShardIndex:
        return self._opened.index

    def read_shard(self, shard: Shard) -> np.ndarray:
        return self._opened.read_shard(shard)

    def close(self) -> None:
        if "_opened" in self.__dict__:
            self._opened.close()


class _PeerSource:
    """A copy at another process."""

    def __init__(self, peer: Peer, name: str) -> None:
        self._peer, self._name = peer, name
        self._about = f"{name} of process {peer.index}"

    @functools.cached_property
    def index(self) -> ShardIndex:
        size = self._peer.size(self._name)
        return read_index(functools.partial(self._peer.get, self._name), size, self._about)

    def read_shard(self, shard: Shard) -> np.ndarray:
        content = memoryview(self._peer.get(self._name, shard.offset, shard.size))

        def read(offset: int, length: int) -> bytes:
            begin = offset - shard.offset
            return bytes(content[begin : begin + length])

        return read_shard(read, shard, self._about)

    def close(self) -> None:
        """Has nothing open."""


def _overlap(wanted: Range, shard: Shard) -> tuple[Any, Any] | None:
    """Returns where a shard goes in the wanted part, and where that is in the shard."""
    into, from_ = [], []
    for (begin, end), low, high in zip(wanted, shard.start, shard.stop, strict=True):
        first, last = max(begin, low), min(end, high)
        if first >= last:
            return None
        into.append(slice(first - begin, last - begin))
        from_.append(slice(first - low, last - low))
    return tuple(into), tuple(from_)
