"""Safetensors files, read and written piece by piece: a header that names arrays, then their bytes.

Nothing that a header says is believed before it is compared with the file, so a damaged or hostile
file ends in an error that names it, never in memory asked for or bytes read beyond its end. The
format is eight bytes (the header's length), the header as JSON, and the arrays, row by row.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from dovetail.config import ConfigError

Array = NDArray[Any]

_LENGTH_BYTES = 8
_LONGEST_HEADER = 100 * 2**20  # the format's own limit
_METADATA = "__metadata__"

_DTYPES: dict[str, np.dtype[Any]] = {
    "F64": np.dtype("<f8"),
    "F32": np.dtype("<f4"),
    "F16": np.dtype("<f2"),
    "BF16": np.dtype(ml_dtypes.bfloat16),
    "F8_E4M3": np.dtype(ml_dtypes.float8_e4m3fn),
    "F8_E5M2": np.dtype(ml_dtypes.float8_e5m2),
    "I64": np.dtype("<i8"),
    "I32": np.dtype("<i4"),
    "I16": np.dtype("<i2"),
    "I8": np.dtype("i1"),
    "U8": np.dtype("u1"),
    "BOOL": np.dtype("?"),
}
_NAMES = {dtype: name for name, dtype in _DTYPES.items()}


@dataclass(frozen=True)
class Entry:
    """One array of a file: its type, its shape, and where its bytes are."""

    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    start: int

    @property
    def size(self) -> int:
        """The number of bytes."""
        return math.prod(self.shape) * self.dtype.itemsize

    def part(self, index: tuple[int, ...]) -> Entry:
        """Returns what stands at a place along the first axes."""
        below = self.shape[len(index) :]
        place = int(np.ravel_multi_index(index, self.shape[: len(index)])) if index else 0
        size = math.prod(below) * self.dtype.itemsize
        return Entry(self.dtype, below, self.start + place * size)


def read_header(
    name: str, size: int, read: Callable[[int, int], bytes | bytearray]
) -> dict[str, Entry]:
    """Returns the arrays of a file by name, all checked against the file.

    Args:
        name: what errors call the file.
        size: the file's size in bytes.
        read: returns so many bytes from a place on.
    """
    if size < _LENGTH_BYTES:
        raise _damaged(name, f"it has {size} bytes, and its header's length alone takes 8")
    length = int.from_bytes(read(0, _LENGTH_BYTES), "little")
    if length > min(_LONGEST_HEADER, size - _LENGTH_BYTES):
        raise _damaged(
            name, f"its header should be {length} bytes long, but the file has only {size}"
        )
    begin = _LENGTH_BYTES + length
    try:
        header = json.loads(bytes(read(_LENGTH_BYTES, length)), object_pairs_hook=_once)
    except (ValueError, RecursionError) as error:
        raise _damaged(name, f"its header cannot be read: {error}") from error
    if not isinstance(header, dict):
        raise _damaged(name, "its header is no JSON object")
    header.pop(_METADATA, None)
    entries = {key: _entry(name, key, value, begin, size) for key, value in header.items()}
    _check_covering(name, entries, begin, size)
    return entries


class SafetensorsFile:
    """A file on a local disk, mapped into memory: reading a slice reads no more than it."""

    def __init__(self, path: Path) -> None:
        """Opens the file and checks its header."""
        self.path = path
        size = path.stat().st_size
        with path.open("rb") as file:

            def read(start: int, count: int) -> bytes:
                file.seek(start)
                return file.read(count)

            self.entries = read_header(str(path), size, read)

    def array(self, name: str) -> Array:
        """Returns an array that reads from the file when it is looked at."""
        entry = self.entries[name]
        if not entry.size:  # nothing cannot be mapped
            return np.zeros(entry.shape, entry.dtype)
        raw = np.memmap(self.path, np.uint8, "r", entry.start, (entry.size,))
        return raw.view(entry.dtype).reshape(entry.shape)

    def read(self, name: str, index: tuple[int, ...] = ()) -> Array:
        """Returns what stands at a place along the first axes, read into memory of its own."""
        part = self.entries[name].part(index)
        flat = np.fromfile(self.path, part.dtype, math.prod(part.shape), offset=part.start)
        return flat.reshape(part.shape)


class SafetensorsWriter:
    """A file of which all arrays are announced first, and then written in any order and by parts.

    The whole file has its place on disk from the beginning, so a full disk is found out at once
    where the file system reserves space.
    """

    def __init__(
        self,
        path: Path,
        arrays: Mapping[str, tuple[np.dtype[Any], tuple[int, ...]]],
        metadata: Mapping[str, str] | None = None,
    ) -> None:
        """Writes the header."""
        header: dict[str, Any] = {_METADATA: dict(metadata)} if metadata else {}
        offset = 0
        # Largest items first keeps every array aligned to its own item size.
        for name in sorted(arrays, key=lambda name: -arrays[name][0].itemsize):
            dtype, shape = arrays[name]
            size = math.prod(shape) * dtype.itemsize
            header[name] = {
                "dtype": _NAMES[dtype],
                "shape": list(shape),
                "data_offsets": [offset, offset + size],
            }
            offset += size
        text = json.dumps(header, separators=(",", ":")).encode()
        text += b" " * (-len(text) % 8)
        begin = _LENGTH_BYTES + len(text)
        self.entries = {
            name: Entry(arrays[name][0], arrays[name][1], begin + header[name]["data_offsets"][0])
            for name in arrays
        }
        self._file = path.open("wb")
        self._file.write(len(text).to_bytes(_LENGTH_BYTES, "little") + text)
        self._file.flush()
        _reserve(self._file.fileno(), begin + offset)

    def write(self, name: str, array: Array, index: tuple[int, ...] = ()) -> None:
        """Writes an array, or what stands at a place along its first axes."""
        part = self.entries[name].part(index)
        if part.shape != array.shape or part.dtype != array.dtype:
            raise ValueError(
                f"{name}{list(index) or ''}: announced as {part.dtype} {part.shape}, got "
                f"{array.dtype} {array.shape}."
            )
        flat = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
        done = 0
        while done < flat.size:  # the system may take less than it is offered
            done += os.pwrite(self._file.fileno(), flat[done:].data, part.start + done)

    def close(self) -> None:
        """Forces everything to disk."""
        if not self._file.closed:
            os.fsync(self._file.fileno())
            self._file.close()

    def __enter__(self) -> Self:
        """Lets the writing begin."""
        return self

    def __exit__(self, *error: object) -> None:
        """Closes the file."""
        self.close()


def can_store(dtype: np.dtype[Any]) -> bool:
    """Says whether the format has a name for a type of number."""
    return dtype in _NAMES


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Makes a dictionary of JSON's pairs; JSON itself allows a key twice."""
    made = dict(pairs)
    if len(made) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"{twice!r} is there twice")
    return made


def _entry(file: str, name: str, value: Any, begin: int, size: int) -> Entry:
    try:
        dtype_name, shape, (start, end) = value["dtype"], value["shape"], value["data_offsets"]
        sizes = [*shape, start, end]
        if not all(type(number) is int and number >= 0 for number in sizes):
            raise ValueError(f"shape and offsets are not all whole numbers: {sizes}")
    except (KeyError, TypeError, ValueError) as error:
        raise _damaged(file, f"its header does not describe {name}: {error}") from error
    if not isinstance(dtype_name, str) or dtype_name not in _DTYPES:
        raise ConfigError(
            f"{name} in {file}: its type is {dtype_name!r}, which is not known here. Known: "
            f"{', '.join(_DTYPES)}. Convert the file."
        )
    dtype = _DTYPES[dtype_name]
    if end > size - begin:
        raise _damaged(
            file, f"{name} should end at byte {begin + end}, but the file ends at {size}"
        )
    if end - start != math.prod(shape) * dtype.itemsize:
        raise _damaged(file, f"{name} has {end - start} bytes, which is not {dtype} {shape}")
    return Entry(dtype, tuple(shape), begin + start)


def _check_covering(file: str, entries: Mapping[str, Entry], begin: int, size: int) -> None:
    """Refuses arrays that overlap, and bytes that belong to none."""
    place, before = begin, "its header"
    for name, entry in sorted(entries.items(), key=lambda pair: (pair[1].start, pair[1].size)):
        if entry.start < place:
            raise _damaged(file, f"{name} overlaps with {before}")
        if entry.start > place:
            raise _damaged(file, f"{entry.start - place} bytes before {name} belong to nothing")
        place, before = entry.start + entry.size, name
    if place != size:
        raise _damaged(file, f"{size - place} bytes at its end belong to nothing")


def _reserve(descriptor: int, size: int) -> None:
    try:
        os.posix_fallocate(descriptor, 0, size)
    except (AttributeError, OSError) as error:
        if getattr(error, "errno", None) in (28, 122):  # no room, over quota
            raise
        os.ftruncate(descriptor, size)


def _damaged(file: str, reason: str) -> ConfigError:
    return ConfigError(
        f"{file} is truncated or damaged: {reason}. Fetch it again, and compare its size and "
        "checksum with the original's."
    )
