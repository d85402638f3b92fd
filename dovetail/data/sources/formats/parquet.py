"""Parquet: a shard is some row groups, read batch by batch."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from dovetail.data.interfaces import BadRecord, CorpusShard, Document
from dovetail.data.sources.formats.base import FileFormat, FileHead, ReadSettings
from dovetail.data.sources.formats.columns import columns_to_read, read_batches
from dovetail.data.sources.source_file import SourceFile

_MAGIC = b"PAR1"
_ROWS = 256  # per batch
# Per column. Without it, and with pre_buffer, pyarrow reads a whole row group: 302 MB for one of
# 200 MB, where 86 MB are enough.
_BUFFER_BYTES = 2**20


class Parquet(FileFormat):
    """Parquet files. A document is named `file#row`, counted from 0."""

    title = "Parquet"
    suffixes = (".parquet",)

    def recognizes(self, head: FileHead) -> bool:
        """Says whether the file begins as Parquet does."""
        return head.data.startswith(_MAGIC)

    def shards(self, file: SourceFile, settings: ReadSettings) -> list[CorpusShard]:
        """Groups row groups to about the wanted size."""
        shards: list[CorpusShard] = []
        start = size = 0
        with self._opened(file) as parquet:
            metadata = parquet.metadata
            for index in range(metadata.num_row_groups):
                size += metadata.row_group(index).total_byte_size
                if size >= settings.shard_bytes or index + 1 == metadata.num_row_groups:
                    shards.append(CorpusShard(file.name, start, index + 1, size))
                    start, size = index + 1, 0
        return shards

    def read(
        self, file: SourceFile, shard: CorpusShard, settings: ReadSettings
    ) -> Iterator[Document | BadRecord]:
        """Yields the rows of some row groups."""
        with self._opened(file) as parquet:
            metadata = parquet.metadata
            stop = metadata.num_row_groups if shard.stop is None else shard.stop
            row = sum(metadata.row_group(index).num_rows for index in range(shard.start))
            columns = columns_to_read(file, parquet.schema_arrow.names, settings.text)
            batches = parquet.iter_batches(
                _ROWS, range(shard.start, stop), columns, use_threads=False
            )
            yield from read_batches(
                file, batches, row, settings.text, lambda name: self.load(name, file.where)
            )

    def identity(self, settings: ReadSettings) -> str:
        """Returns which text is taken."""
        return f"parquet/{settings.text.source}"

    @contextlib.contextmanager
    def _opened(self, file: SourceFile) -> Iterator[Any]:
        parquet = self.load("pyarrow.parquet", file.where)
        with (
            self.explained_errors(file),
            file.open() as stream,
            parquet.ParquetFile(stream, buffer_size=_BUFFER_BYTES, pre_buffer=False) as opened,
        ):
            yield opened
