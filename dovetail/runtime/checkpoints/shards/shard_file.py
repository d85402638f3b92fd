"""Shard files: shards of arrays, each with its index range in the global array and checksums.

    magic | bytes of the shards | index (JSON) | length and CRC-32C of the index, magic

A file does not depend on a mesh: a reader finds the shards that overlap what it needs. The bytes
of each shard have a CRC-32C per block of 4 MiB, and the index has one, so a flipped bit, a lost
block or a truncated file is found before the data is used.
"""

from __future__ import annotations

import contextlib
import json
import os
import struct
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Protocol, Self

import jax.numpy as jnp
import numpy as np
from google_crc32c import value as crc32c

from dovetail.runtime.checkpoints.manifest import DamagedCheckpointError
from dovetail.utils import flush

_MAGIC = b"dvshard1"
_TRAILER = struct.Struct("<QI8s")
_BLOCK_BYTES = 4 * 2**20
_MAX_INDEX_BYTES = 2**30

ReadBytes = Callable[[int, int], bytes]
"""Returns the bytes of a file from an offset; fewer at its end."""


@dataclass(frozen=True)
class Shard:
    """A shard of an array in a file."""

    path: str
    shape: tuple[int, ...]
    """The shape of the global array."""
    dtype: str
    start: tuple[int, ...]
    stop: tuple[int, ...]
    offset: int
    checksums: tuple[int, ...]

    @property
    def shard_shape(self) -> tuple[int, ...]:
        """The shape of the shard."""
        return tuple(b - a for a, b in zip(self.start, self.stop, strict=True))

    @property
    def size(self) -> int:
        """The number of bytes."""
        return int(np.prod(self.shard_shape, dtype=np.int64)) * jnp.dtype(self.dtype).itemsize


@dataclass(frozen=True)
class ShardIndex:
    """The index of a file: its shards, and the save that it belongs to."""

    about: Mapping[str, Any]
    shards: tuple[Shard, ...]


class Writable(Protocol):
    """A stream that takes bytes."""

    def write(self, content: bytes, /) -> int:
        """Appends bytes, and returns how many."""
        ...


class ShardWriter:
    """Writes shards to a stream."""

    def __init__(self, stream: Writable, about: Mapping[str, Any]) -> None:
        """Starts at the beginning of an empty stream."""
        self._stream, self._about = stream, about
        self._shards: list[Shard] = []
        self._offset = stream.write(_MAGIC)

    def add(self, path: str, shape: tuple[int, ...], start: tuple[int, ...], part: Any) -> None:
        """Appends a shard, which starts at an index of the global array."""
        stop = tuple(a + b for a, b in zip(start, part.shape, strict=True))
        content = np.ascontiguousarray(part).reshape(-1).view(np.uint8)
        offset, checksums = self._offset, []
        for begin in range(0, len(content), _BLOCK_BYTES):
            block = content[begin : begin + _BLOCK_BYTES].tobytes()
            checksums.append(crc32c(block))
            self._stream.write(block)
            self._offset += len(block)
        dtype = str(part.dtype)
        self._shards.append(Shard(path, shape, dtype, start, stop, offset, tuple(checksums)))

    def finish(self) -> ShardIndex:
        """Writes the index, which completes the content, and returns it."""
        index = {"about": dict(self._about), "shards": [asdict(s) for s in self._shards]}
        content = json.dumps(index, separators=(",", ":")).encode()
        self._stream.write(content)
        self._stream.write(_TRAILER.pack(len(content), crc32c(content), _MAGIC))
        return ShardIndex(self._about, tuple(self._shards))


@contextlib.contextmanager
def new_shard_file(file: Path, about: Mapping[str, Any]) -> Iterator[ShardWriter]:
    """Writes a shard file, which gets its name only when it is complete and on disk."""
    temporary = file.with_name(f"{file.name}.part-{os.getpid()}")
    try:
        with temporary.open("wb") as stream:
            writer = ShardWriter(stream, about)
            yield writer
            writer.finish()
            stream.flush()
            os.fsync(stream.fileno())
        temporary.replace(file)
        flush(file.parent)
    finally:
        temporary.unlink(missing_ok=True)


def read_index(read: ReadBytes, size: int, name: str) -> ShardIndex:
    """Returns the index of a file of `size` bytes; `name` is for messages.

    Raises:
        DamagedCheckpointError: if the file is truncated, or its index is damaged.
    """
    trailer = read(max(size - _TRAILER.size, 0), _TRAILER.size)
    if len(trailer) != _TRAILER.size or trailer[-len(_MAGIC) :] != _MAGIC:
        raise DamagedCheckpointError(f"{name} is cut off, or no file of shards")
    length, checksum, _ = _TRAILER.unpack(trailer)
    if length > min(size, _MAX_INDEX_BYTES):
        raise DamagedCheckpointError(f"{name} is damaged: its index would have {length} bytes")
    content = read(size - _TRAILER.size - length, length)
    if crc32c(content) != checksum:
        raise DamagedCheckpointError(f"{name} is damaged: the checksum of its index is wrong")
    values = json.loads(content)
    return ShardIndex(values["about"], tuple(_shard(shard) for shard in values["shards"]))


def read_shard(read: ReadBytes, shard: Shard, name: str) -> np.ndarray:
    """Returns the elements of a shard; compares all its checksums first."""
    content = np.empty(shard.size, np.uint8)
    for number, begin in enumerate(range(0, shard.size, _BLOCK_BYTES)):
        length = min(_BLOCK_BYTES, shard.size - begin)
        block = read(shard.offset + begin, length)
        if len(block) != length or crc32c(block) != shard.checksums[number]:
            raise DamagedCheckpointError(
                f"{name} is damaged: {shard.path} is not what was saved, from byte "
                f"{shard.offset + begin}"
            )
        content[begin : begin + length] = np.frombuffer(block, np.uint8)
    return content.view(jnp.dtype(shard.dtype)).reshape(shard.shard_shape)


def verify_file(file: Path) -> ShardIndex:
    """Reads a whole file and compares all checksums."""
    with OpenShardFile(file) as opened:
        for shard in opened.index.shards:
            opened.read_shard(shard)
        return opened.index


class OpenShardFile:
    """A shard file on this host, open for reading."""

    def __init__(self, file: Path) -> None:
        """Reads the index."""
        self._name = str(file)
        self._stream = file.open("rb")
        try:
            size = os.fstat(self._stream.fileno()).st_size
            self.index = read_index(self._read, size, self._name)
        except BaseException:
            self._stream.close()
            raise

    def read_shard(self, shard: Shard) -> np.ndarray:
        """Returns the elements of a shard of the index."""
        return read_shard(self._read, shard, self._name)

    def _read(self, offset: int, length: int) -> bytes:
        return os.pread(self._stream.fileno(), length, offset)

    def __enter__(self) -> Self:
        """Returns the open file."""
        return self

    def __exit__(self, *_: object) -> None:
        """Closes the file."""
        self.close()

    def close(self) -> None:
        """Closes the file."""
        self._stream.close()


def _shard(values: Mapping[str, Any]) -> Shard:
    names = ("shape", "start", "stop", "checksums")
    return Shard(**{**values, **{name: tuple(values[name]) for name in names}})
