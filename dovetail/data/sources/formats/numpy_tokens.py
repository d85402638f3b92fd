"""Token ids in NumPy's files: rows of a matrix, or one long array and the starts of documents."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, BinaryIO

import numpy as np

from dovetail.data.interfaces import BadRecord, CorpusShard, Document
from dovetail.data.sources.formats.base import FileHead, ReadSettings, range_shards
from dovetail.data.sources.formats.tokens import TokenFormat, read_array
from dovetail.data.sources.source_file import SourceFile

_MAGIC = b"\x93NUMPY"
_STARTS = ".starts.npy"
_DOCUMENTS = 1024  # whose starts are read at once


@dataclass(frozen=True)
class _Header:
    """What a `.npy` says about its array."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    offset: int
    """Where the array begins in the file."""


class NumPyTokens(TokenFormat):
    """Token ids in `.npy` files of an integer dtype.

    Each row of a matrix is a document. An array with one axis has a file beside it with the offset
    of each document's first token: `x.starts.npy` of `x.npy`. A document is named `file#document`,
    counted from 0.
    """

    title = "NumPy tokens"
    suffixes = (".npy",)

    def recognizes(self, head: FileHead) -> bool:
        """Says whether the file begins as a `.npy` does."""
        return head.data.startswith(_MAGIC)

    def parts(self, file: SourceFile) -> Sequence[SourceFile]:
        """Returns the array, and the starts of its documents if there is such a file."""
        starts = file.with_suffix(".npy", _STARTS)
        return [file] if starts is None else [file, starts]

    def is_part(self, name: str, names: Collection[str]) -> bool:
        """Says whether a file has the starts of the documents of another one."""
        return name.endswith(_STARTS) and name.removesuffix(_STARTS) + ".npy" in names

    def shards(self, file: SourceFile, settings: ReadSettings) -> list[CorpusShard]:
        """Cuts the documents into ranges."""
        array, starts = self._headers(file)
        count = _count(array, starts)
        return range_shards(file.name, count, file.size(), settings.shard_bytes)

    def read(
        self, file: SourceFile, shard: CorpusShard, settings: ReadSettings
    ) -> Iterator[Document | BadRecord]:
        """Yields the documents of a range."""
        array, starts = self._headers(file)
        stop = _count(array, starts) if shard.stop is None else shard.stop
        with self.explained_errors(file), file.open() as stream:
            for start in range(shard.start, stop, _DOCUMENTS):
                until = min(start + _DOCUMENTS, stop)
                bounds = self._bounds(file, array, starts, start, until)
                for index, (first, last) in enumerate(pairwise(bounds), start):
                    offset = array.offset + first * array.dtype.itemsize
                    ids = read_array(stream, offset, last - first, array.dtype)
                    yield self.document(file, index, ids)

    def _headers(self, file: SourceFile) -> tuple[_Header, _Header | None]:
        """Returns the headers of the array and of its starts; refuses what has no documents."""
        parts = self.parts(file)
        headers = [self._header(each) for each in parts]
        array, starts = headers[0], headers[1] if len(headers) > 1 else None
        if starts is None and len(array.shape) != 2:
            raise self.damaged(
                file,
                f"expected a matrix with a document in each row, or a file {_STARTS!r} beside it "
                f"with the offset of each document's first token; got the shape {array.shape}",
            )
        if starts is not None and (len(array.shape) != 1 or len(starts.shape) != 1):
            raise self.damaged(
                file,
                f"expected one axis in it and in its {_STARTS!r}, got the shapes {array.shape} and "
                f"{starts.shape}",
            )
        return array, starts

    def _header(self, file: SourceFile) -> _Header:
        with self.explained_errors(file), file.open() as stream:
            shape, fortran, dtype, offset = _read_header(stream)
            if dtype.kind not in "iu" or (fortran and len(shape) > 1):
                order = " in Fortran's order" if fortran else ""
                raise self.damaged(file, f"expected an array of integers, got {dtype}{order}")
            header = _Header(shape, dtype, offset)
            expected = offset + math.prod(shape) * dtype.itemsize
            if file.size() != expected:
                raise self.damaged(
                    file, f"expected {expected:,} bytes for {shape}, got {file.size():,}"
                )
            return header

    def _bounds(
        self, file: SourceFile, array: _Header, starts: _Header | None, start: int, stop: int
    ) -> list[int]:
        """Returns the first token of each document of a range, and of the one after it."""
        if starts is None:
            return [row * array.shape[1] for row in range(start, stop + 1)]
        is_last = stop == starts.shape[0]
        with self.parts(file)[1].open() as stream:
            offset = starts.offset + start * starts.dtype.itemsize
            read = read_array(stream, offset, stop - start + (not is_last), starts.dtype)
        bounds = [*map(int, read), *([array.shape[0]] if is_last else [])]
        if bounds[0] < 0 or bounds != sorted(bounds) or bounds[-1] > array.shape[0]:
            raise ValueError(
                f"the starts of its documents must rise from 0 to at most {array.shape[0]:,}"
            )
        if start == 0 and bounds[0] != 0:
            raise ValueError(f"its first document must start at 0, not at {bounds[0]}")
        return bounds


def _count(array: _Header, starts: _Header | None) -> int:
    """Returns the number of documents."""
    if starts is not None:
        return starts.shape[0]
    return array.shape[0] if array.shape[1] else 0


def _read_header(stream: BinaryIO) -> tuple[tuple[int, ...], bool, np.dtype[Any], int]:
    version = np.lib.format.read_magic(stream)
    read = (
        np.lib.format.read_array_header_1_0
        if version == (1, 0)
        else np.lib.format.read_array_header_2_0
    )
    try:
        shape, fortran, dtype = read(stream)
    except TypeError as error:  # a key that is no text
        raise ValueError(f"its header is damaged: {error}") from error
    return tuple(int(size) for size in shape), bool(fortran), dtype, stream.tell()
