"""Checksums of token files, per block: a block is verified when it is first read.

Comparing a file of 100 GB with its checksum takes minutes, so a run cannot do that at its start. A
row of a batch is a few kilobytes, so reading a block around it costs little, and once.
"""

from __future__ import annotations

import mmap
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

BLOCK_BYTES = 64 * 2**10
_READ_BYTES = 64 * BLOCK_BYTES


def checksum_of(path: Path) -> tuple[int, int]:
    """Returns the size and the CRC-32C of a file."""
    from google_crc32c import extend

    size = checksum = 0
    with path.open("rb") as stream:
        while chunk := stream.read(_READ_BYTES):
            size += len(chunk)
            checksum = extend(checksum, chunk)
    return size, checksum


def block_checksums(path: Path) -> NDArray[np.uint32]:
    """Returns the CRC-32C of each block of a file."""
    from google_crc32c import value

    found = []
    with path.open("rb") as stream:
        while chunk := stream.read(BLOCK_BYTES):
            found.append(value(chunk))
    return np.array(found, "<u4")


def map_file(path: Path, dtype: np.dtype[Any], length: int, is_random: bool) -> NDArray[Any]:
    """Memory-maps an array of one axis.

    Args:
        path: the file.
        dtype: of its elements.
        length: how many there are.
        is_random: whether rows are read here and there. The system then reads nothing ahead: 64
            rows of a file of 20 GB take 0.8 ms instead of 110.
    """
    if not length:  # an empty file cannot be memory-mapped
        return np.zeros(0, dtype)
    with path.open("rb") as stream:
        mapped = mmap.mmap(stream.fileno(), length * dtype.itemsize, access=mmap.ACCESS_READ)
    if is_random and hasattr(mmap, "MADV_RANDOM"):
        mapped.madvise(mmap.MADV_RANDOM)
    return np.frombuffer(mapped, dtype)


class VerifiedArray:
    """A memory-mapped array of one axis that verifies each block when it is first read.

    It takes indices as NumPy does: an integer array of any shape, or a slice without a step.
    """

    def __init__(
        self,
        array: NDArray[Any],
        checksums: NDArray[np.uint32],
        on_damage: Callable[[int], Exception],
    ) -> None:
        """Verifies nothing yet.

        Args:
            array: the memory-mapped file.
            checksums: those of its blocks.
            on_damage: makes the error for a damaged block, given where it begins, in bytes.
        """
        self._array, self._checksums, self._on_damage = array, checksums, on_damage
        self._bytes = array.view(np.uint8)
        self._per_block = BLOCK_BYTES // array.itemsize
        self._is_verified = np.zeros(len(checksums), bool)
        self._lock = threading.Lock()
        self.dtype = array.dtype

    def __len__(self) -> int:
        return len(self._array)

    def __getitem__(self, index: Any) -> NDArray[Any]:
        """Returns elements, after verifying their blocks."""
        if isinstance(index, slice):
            start, stop, _ = index.indices(len(self._array))
            if start < stop:
                self._verify(np.arange(start // self._per_block, -(-stop // self._per_block)))
        elif np.size(index):
            offsets = np.asarray(index)
            self._verify(np.where(offsets < 0, offsets + len(self), offsets) // self._per_block)
        result: NDArray[Any] = self._array[index]
        return result

    def verify_all(self) -> None:
        """Verifies what has not been read yet."""
        self._verify(np.arange(len(self._checksums)))

    def _verify(self, blocks: NDArray[np.int64]) -> None:
        known = self._is_verified[blocks]
        if known.all():
            return
        from google_crc32c import value

        with self._lock:
            for block in np.unique(blocks[~known]).tolist():
                start = block * BLOCK_BYTES
                if value(self._bytes[start : start + BLOCK_BYTES].tobytes()) != int(
                    self._checksums[block]
                ):
                    raise self._on_damage(start)
                self._is_verified[block] = True
