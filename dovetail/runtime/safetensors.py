"""Safetensors files, read and written slice by slice.

The format is eight bytes (the length of the header), the header as JSON, and the arrays in
row-major order. Every number in a header is checked against the file before it is used, so a
damaged or hostile file raises an error that names it: no huge allocation, no read past the end.

Why not the `safetensors` library: its NumPy framework has no float8 (0.8 raises AttributeError), it
opens only local files where `interop` reads over fsspec, and `save_file` needs all arrays of a file
in memory, where this writer holds one slice. The tests read its files and let it read ours.

Files that are written here carry the digest of each array (`digest.py`) in their metadata, which
other readers ignore. Reading compares the digests, so a flipped bit is noticed.
"""

from __future__ import annotations

import errno
import json
import math
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from dovetail.config import ConfigError
from dovetail.runtime.digest import add_sums, sums_of_part

Array = NDArray[Any]

_LENGTH_BYTES = 8
_MAX_HEADER_BYTES = 100 * 2**20  # the format's own limit
_METADATA = "__metadata__"
_DIGESTS = "dovetail_digests"
_DIGEST_LENGTH = 16
_VERIFIED_BYTES = 64 * 2**20

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
class TensorInfo:
    """The dtype and shape of an array in a file, and the offset of its first byte."""

    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    offset: int
    digest: str | None = None

    @property
    def size(self) -> int:
        """The number of bytes."""
        return math.prod(self.shape) * self.dtype.itemsize

    def at(self, index: tuple[int, ...]) -> TensorInfo:
        """Returns the subarray at an index along the first axes."""
        shape = self.shape[len(index) :]
        row = int(np.ravel_multi_index(index, self.shape[: len(index)])) if index else 0
        row_bytes = math.prod(shape) * self.dtype.itemsize
        return TensorInfo(self.dtype, shape, self.offset + row * row_bytes)


def read_header(
    name: str, size: int, read: Callable[[int, int], bytes | bytearray]
) -> dict[str, TensorInfo]:
    """Returns the arrays of a file by name, all checked against the file.

    Args:
        name: the file's name in errors.
        size: the file's size in bytes.
        read: returns the bytes at an offset; its arguments are the offset and the count.
    """
    if size < _LENGTH_BYTES:
        raise _damaged(name, f"it has {size} bytes, and the length of its header alone takes 8")
    length = int.from_bytes(read(0, _LENGTH_BYTES), "little")
    if length > min(_MAX_HEADER_BYTES, size - _LENGTH_BYTES):
        raise _damaged(
            name, f"its header should be {length} bytes long, but the file has only {size}"
        )
    try:
        header = json.loads(bytes(read(_LENGTH_BYTES, length)), object_pairs_hook=_unique_keys)
    except (ValueError, RecursionError) as error:
        raise _damaged(name, f"its header cannot be read: {error}") from error
    if not isinstance(header, dict):
        raise _damaged(name, "its header is not a JSON object")
    metadata = header.pop(_METADATA, None)
    begin = _LENGTH_BYTES + length
    tensors = {key: _tensor_info(name, key, value, begin, size) for key, value in header.items()}
    tensors = _with_digests(tensors, metadata)
    _check_coverage(name, tensors, begin, size)
    return tensors


def verify_tensor(
    name: str, info: TensorInfo, read: Callable[[int, int], bytes | bytearray]
) -> None:
    """Reads an array in parts, and compares it with its digest, if the file has one.

    Args:
        name: the names of the file and of the array, for errors.
        info: the array.
        read: returns the bytes at an offset; its arguments are the offset and the count.

    Raises:
        ConfigError: if the array differs from its digest.
    """
    if info.digest is None or not info.size:
        return
    rows, parts = info.shape[0] if info.shape else 1, []
    row_bytes = info.size // rows
    count = max(_VERIFIED_BYTES // row_bytes, 1)
    for begin in range(0, rows, count):
        number = min(count, rows - begin)
        data = read(info.offset + begin * row_bytes, number * row_bytes)
        shape = (number, *info.shape[1:]) if info.shape else ()
        part = np.frombuffer(data, info.dtype).reshape(shape)
        parts.append(sums_of_part(part, (begin,) + (0,) * (len(shape) - 1) if shape else ()))
    if (found := add_sums(parts)) != info.digest:
        raise _damaged(name, f"its digest is {found}, but it was written with {info.digest}")


class SafetensorsFile:
    """A memory-mapped local file. Slicing an array reads only that slice."""

    def __init__(self, path: Path) -> None:
        """Opens the file and checks its header."""
        self.path = path
        with path.open("rb") as file:

            def read(offset: int, count: int) -> bytes:
                file.seek(offset)
                return file.read(count)

            self.tensors = read_header(str(path), path.stat().st_size, read)

    def array(self, name: str) -> Array:
        """Returns an array whose data is read from the file on access."""
        info = self.tensors[name]
        if not info.size:  # an empty array cannot be memory-mapped
            return np.zeros(info.shape, info.dtype)
        raw = np.memmap(self.path, np.uint8, "r", info.offset, (info.size,))
        return raw.view(info.dtype).reshape(info.shape)

    def verify(self, name: str) -> None:
        """Compares an array with its digest; raises a ConfigError if it is damaged."""
        with self.path.open("rb") as file:

            def read(offset: int, count: int) -> bytes:
                return os.pread(file.fileno(), count, offset)

            verify_tensor(f"{name} in {self.path}", self.tensors[name], read)

    def read(self, name: str, index: tuple[int, ...] = ()) -> Array:
        """Returns a copy of the subarray at an index along the first axes."""
        info = self.tensors[name].at(index)
        flat = np.fromfile(self.path, info.dtype, math.prod(info.shape), offset=info.offset)
        return flat.reshape(info.shape)


class SafetensorsWriter:
    """Writes a file whose arrays are declared first, then written in any order and by slices.

    The space for the whole file is reserved at the start, so that a full disk is found at once
    where the file system supports it.
    """

    def __init__(
        self,
        path: Path,
        arrays: Mapping[str, tuple[np.dtype[Any], tuple[int, ...]]],
        metadata: Mapping[str, str] | None = None,
    ) -> None:
        """Writes the header."""
        # The digests are known at the end; they take the place of these zeros.
        zeros = "0" * (_DIGEST_LENGTH * len(arrays))
        header: dict[str, Any] = {_METADATA: {**(metadata or {}), _DIGESTS: zeros}}
        end = 0
        # Largest items first keeps every array aligned to its own item size.
        for name in sorted(arrays, key=lambda name: -arrays[name][0].itemsize):
            dtype, shape = arrays[name]
            start, end = end, end + math.prod(shape) * dtype.itemsize
            header[name] = {
                "dtype": _NAMES[dtype],
                "shape": list(shape),
                "data_offsets": [start, end],
            }
        text = _header_text(header)
        begin = _LENGTH_BYTES + len(text)
        self._header = header
        self._sums: dict[str, list[list[int]]] = {name: [] for name in arrays}
        self.tensors = {
            name: TensorInfo(dtype, shape, begin + header[name]["data_offsets"][0])
            for name, (dtype, shape) in arrays.items()
        }
        self._file = path.open("wb")
        self._file.write(len(text).to_bytes(_LENGTH_BYTES, "little") + text)
        self._file.flush()
        _reserve(self._file.fileno(), begin + end)

    def write(self, name: str, array: Array, index: tuple[int, ...] = ()) -> None:
        """Writes an array, or its subarray at an index along the first axes."""
        info = self.tensors[name].at(index)
        if info.shape != array.shape or info.dtype != array.dtype:
            raise ValueError(
                f"{name}{list(index) or ''}: declared as {info.dtype} {info.shape}, got "
                f"{array.dtype} {array.shape}."
            )
        array = np.ascontiguousarray(array).reshape(array.shape)  # it makes a scalar a vector
        if array.size:
            part = array.reshape((1,) * len(index) + array.shape)
            self._sums[name].append(sums_of_part(part, (*index, *(0,) * array.ndim)))
        flat = array.reshape(-1).view(np.uint8)
        done = 0
        while done < flat.size:  # one call may write less than it is given
            done += os.pwrite(self._file.fileno(), flat[done:].data, info.offset + done)

    def close(self) -> None:
        """Writes the digests, flushes the file to disk and closes it."""
        if not self._file.closed:
            names = [name for name in self._header if name != _METADATA]
            digests = "".join(add_sums(self._sums[name]) for name in names)
            self._header[_METADATA][_DIGESTS] = digests
            os.pwrite(self._file.fileno(), _header_text(self._header), _LENGTH_BYTES)
            os.fsync(self._file.fileno())
            self._file.close()

    def __enter__(self) -> Self:
        """Returns the writer itself."""
        return self

    def __exit__(self, *error: object) -> None:
        """Closes the file."""
        self.close()


def can_store(dtype: np.dtype[Any]) -> bool:
    """Says whether the format has a name for a dtype."""
    return dtype in _NAMES


def _header_text(header: Mapping[str, Any]) -> bytes:
    text = json.dumps(header, separators=(",", ":")).encode()
    return text + b" " * (-len(text) % 8)


def _with_digests(tensors: dict[str, TensorInfo], metadata: Any) -> dict[str, TensorInfo]:
    """Adds the digests of a file that was written here, in the order of its header."""
    digests = metadata.get(_DIGESTS) if isinstance(metadata, dict) else None
    if not isinstance(digests, str) or len(digests) != _DIGEST_LENGTH * len(tensors):
        return tensors
    return {
        name: replace(info, digest=digests[_DIGEST_LENGTH * n : _DIGEST_LENGTH * (n + 1)])
        for n, (name, info) in enumerate(tensors.items())
    }


def _unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Makes a dictionary of JSON's pairs; JSON itself allows duplicate keys."""
    made = dict(pairs)
    if len(made) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"{twice!r} occurs twice")
    return made


def _tensor_info(file: str, name: str, value: Any, begin: int, size: int) -> TensorInfo:
    try:
        dtype_name, shape, (start, end) = value["dtype"], value["shape"], value["data_offsets"]
        sizes = [*shape, start, end]
        if not all(type(number) is int and number >= 0 for number in sizes):
            raise ValueError(f"shape and offsets are not all integers: {sizes}")
    except (KeyError, TypeError, ValueError) as error:
        raise _damaged(file, f"its header does not describe {name}: {error}") from error
    if not isinstance(dtype_name, str) or dtype_name not in _DTYPES:
        raise ConfigError(
            f"{name} in {file}: its dtype {dtype_name!r} is not supported. Supported: "
            f"{', '.join(_DTYPES)}. Convert the file."
        )
    dtype = _DTYPES[dtype_name]
    if end > size - begin:
        raise _damaged(
            file, f"{name} should end at byte {begin + end}, but the file ends at {size}"
        )
    if end - start != math.prod(shape) * dtype.itemsize:
        raise _damaged(file, f"{name} has {end - start} bytes, which is not {dtype} {shape}")
    return TensorInfo(dtype, tuple(shape), begin + start)


def _check_coverage(file: str, tensors: Mapping[str, TensorInfo], begin: int, size: int) -> None:
    """Rejects arrays that overlap, and bytes that belong to none."""
    offset, before = begin, "its header"
    for name, info in sorted(tensors.items(), key=lambda pair: (pair[1].offset, pair[1].size)):
        if info.offset < offset:
            raise _damaged(file, f"{name} overlaps with {before}")
        if info.offset > offset:
            raise _damaged(file, f"{info.offset - offset} bytes before {name} belong to nothing")
        offset, before = info.offset + info.size, name
    if offset != size:
        raise _damaged(file, f"{size - offset} bytes at its end belong to nothing")


def _reserve(descriptor: int, size: int) -> None:
    try:
        os.posix_fallocate(descriptor, 0, size)
    except (AttributeError, OSError) as error:
        if getattr(error, "errno", None) in (errno.ENOSPC, errno.EDQUOT):
            raise
        os.ftruncate(descriptor, size)  # the system or the file system cannot reserve space


def _damaged(file: str, reason: str) -> ConfigError:
    return ConfigError(
        f"{file} is truncated or damaged: {reason}. Fetch it again, and compare its size and "
        "checksum with the original's."
    )
