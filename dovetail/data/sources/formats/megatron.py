r"""Megatron-LM's indexed datasets: token ids in a `.bin`, where they are in an `.idx`.

The layout of an `.idx`, all little-endian
(https://github.com/NVIDIA/Megatron-LM/blob/main/megatron/core/datasets/indexed_dataset.py):

    9 bytes     MMIDIDX\0\0
    uint64      version, 1
    uint8       the dtype of the tokens, see `_DTYPES`
    uint64      S, the number of sequences
    uint64      D, the number of documents + 1
    int32[S]    the length of each sequence, in tokens
    int64[S]    where it begins in the .bin, in bytes
    int64[D]    the first sequence of each document, then S
    int8[S]     modes, of multimodal data only
"""

from __future__ import annotations

import struct
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from dovetail.config import ConfigError
from dovetail.data.interfaces import BadRecord, CorpusShard, Document
from dovetail.data.sources.formats.base import FileHead, ReadSettings, range_shards
from dovetail.data.sources.formats.tokens import TokenFormat, read_array
from dovetail.data.sources.source_file import SourceFile

_MAGIC = b"MMIDIDX\0\0"
_HEADER = struct.Struct("<9sQBQQ")
_DTYPES = {1: "u1", 2: "i1", 3: "<i2", 4: "<i4", 5: "<i8", 8: "<u2"}
_LENGTH, _OFFSET = np.dtype("<i4"), np.dtype("<i8")
_DOCUMENTS = 1024  # whose places are read at once


@dataclass(frozen=True)
class _Index:
    """The header of an `.idx`."""

    dtype: np.dtype[Any]
    sequences: int
    documents: int

    @property
    def offsets(self) -> int:
        """Where the offsets of sequences begin in the `.idx`."""
        return _HEADER.size + _LENGTH.itemsize * self.sequences

    @property
    def firsts(self) -> int:
        """Where the first sequences of documents begin in the `.idx`."""
        return self.offsets + _OFFSET.itemsize * self.sequences

    @property
    def size(self) -> int:
        """The size of the `.idx`, without modes."""
        return self.firsts + _OFFSET.itemsize * (self.documents + 1)


class MegatronTokens(TokenFormat):
    """Megatron-LM's `.bin` and `.idx`, named by the `.idx`.

    A document is named `file.idx#document`, counted from 0. Megatron's tools end documents with an
    id if they are asked to (`--append-eod`): set `end_of_document` to it.
    """

    title = "Megatron's tokens"
    suffixes = (".idx",)

    def recognizes(self, head: FileHead) -> bool:
        """Says whether the file begins as an `.idx` does."""
        return head.data.startswith(_MAGIC)

    def parts(self, file: SourceFile) -> Sequence[SourceFile]:
        """Returns the `.idx` and the `.bin`."""
        return [file, self._tokens(file)]

    def is_part(self, name: str, names: Collection[str]) -> bool:
        """Says whether a file has the tokens of an `.idx`."""
        return name.endswith(".bin") and name.removesuffix(".bin") + ".idx" in names

    def shards(self, file: SourceFile, settings: ReadSettings) -> list[CorpusShard]:
        """Cuts the documents into ranges."""
        with self.explained_errors(file), file.open() as stream:
            count = self._index(file, stream).documents
        size = self._tokens(file).size()
        return range_shards(file.name, count, size, settings.shard_bytes)

    def read(
        self, file: SourceFile, shard: CorpusShard, settings: ReadSettings
    ) -> Iterator[Document | BadRecord]:
        """Yields the documents of a range."""
        tokens = self._tokens(file)
        with self.explained_errors(file), file.open() as stream, tokens.open() as token_stream:
            index = self._index(file, stream)
            stop = index.documents if shard.stop is None else shard.stop
            for start in range(shard.start, stop, _DOCUMENTS):
                until = min(start + _DOCUMENTS, stop)
                places_of_all = _places(stream, index, start, until, tokens.size())
                for number, places in enumerate(places_of_all, start):
                    pieces = [
                        read_array(token_stream, offset, length, index.dtype)
                        for offset, length in places
                    ]
                    ids = np.concatenate(pieces) if pieces else np.zeros(0, np.int32)
                    yield self.document(file, number, ids)

    def _tokens(self, file: SourceFile) -> SourceFile:
        found = file.with_suffix(".idx", ".bin")
        if found is None:
            raise ConfigError(
                f"{file.where}: there is no .bin beside it, which has the tokens. Copy it there."
            )
        return found

    def _index(self, file: SourceFile, stream: BinaryIO) -> _Index:
        header = stream.read(_HEADER.size)
        if len(header) < _HEADER.size or not header.startswith(_MAGIC):
            raise self.damaged(file, "it has no complete header")
        _, version, code, sequences, bounds = _HEADER.unpack(header)
        if version != 1 or code not in _DTYPES:
            raise self.damaged(
                file,
                f"expected version 1 and integer tokens, got version {version} and dtype {code}",
            )
        index = _Index(np.dtype(_DTYPES[code]), sequences, max(bounds - 1, 0))
        expected = (index.size, index.size + sequences)
        if not bounds or file.size() not in expected:
            raise self.damaged(
                file,
                f"{sequences:,} sequences and {index.documents:,} documents take {index.size:,} "
                f"bytes, and it has {file.size():,}",
            )
        return index


def _places(
    stream: BinaryIO, index: _Index, start: int, stop: int, token_bytes: int
) -> Iterator[list[tuple[int, int]]]:
    """Yields the offsets and lengths of the sequences of each document of a range."""
    offset = index.firsts + _OFFSET.itemsize * start
    firsts = read_array(stream, offset, stop - start + 1, _OFFSET)
    _check_firsts(firsts, index)
    first, last = int(firsts[0]), int(firsts[-1])
    lengths = read_array(stream, _HEADER.size + _LENGTH.itemsize * first, last - first, _LENGTH)
    offsets = read_array(stream, index.offsets + _OFFSET.itemsize * first, last - first, _OFFSET)
    if len(lengths) and (lengths.min() < 0 or offsets.min() < 0):
        raise ValueError("a sequence has a negative length or offset")
    ends = offsets + lengths.astype(np.int64) * index.dtype.itemsize
    if len(ends) and (ends.max() > token_bytes or np.any(ends < offsets)):
        raise ValueError(
            f"a sequence ends at byte {int(ends.max()):,} of the .bin, which has {token_bytes:,}"
        )
    for begin, end in zip(firsts[:-1] - first, firsts[1:] - first, strict=True):
        yield list(zip(offsets[begin:end].tolist(), lengths[begin:end].tolist(), strict=True))


def _check_firsts(firsts: NDArray[Any], index: _Index) -> None:
    if firsts[0] < 0 or firsts[-1] > index.sequences or np.any(np.diff(firsts) < 0):
        raise ValueError("its documents are not consecutive sequences")
