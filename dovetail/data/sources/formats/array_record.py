"""ArrayRecord: records of bytes with random access."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from typing import Any

from dovetail.config import ConfigError
from dovetail.data.interfaces import BadRecord, CorpusShard, Document
from dovetail.data.sources.formats.base import FileFormat, FileHead, ReadSettings, range_shards
from dovetail.data.sources.formats.json_lines import read_object
from dovetail.data.sources.formats.plain_text import not_utf8
from dovetail.data.sources.source_file import SourceFile
from dovetail.data.sources.text_field import TextField

# The signature of Riegeli's files, of which ArrayRecord is one kind.
_MAGIC = bytes.fromhex("83af70d10d884a3f0000000000000000400000000000000091bac23c9287e1a9")
_RECORDS = 64  # read at once


class ArrayRecord(FileFormat):
    """ArrayRecord files on this machine, whose records are UTF-8 text or JSON objects.

    With `text` set, records are JSON objects and `text` says what to take of them; without it, they
    are text. A document is named `file#record`, counted from 0.
    """

    title = "ArrayRecord"
    suffixes = (".array_record", ".arrayrecord")

    def recognizes(self, head: FileHead) -> bool:
        """Says whether the file begins as Riegeli's files do."""
        return head.data.startswith(_MAGIC)

    def shards(self, file: SourceFile, settings: ReadSettings) -> list[CorpusShard]:
        """Cuts a file into ranges of records."""
        size = file.size()
        with self._opened(file) as reader:
            count = int(reader.num_records())
        return range_shards(file.name, count, size, settings.shard_bytes)

    def read(
        self, file: SourceFile, shard: CorpusShard, settings: ReadSettings
    ) -> Iterator[Document | BadRecord]:
        """Yields the records of a range."""
        with self._opened(file) as reader:
            stop = int(reader.num_records()) if shard.stop is None else shard.stop
            if shard.start < stop and not settings.text.source:
                _refuse_objects(file, reader.read(shard.start, shard.start + 1)[0])
            for start in range(shard.start, stop, _RECORDS):
                records = reader.read(start, min(start + _RECORDS, stop))
                for row, data in enumerate(records, start):
                    yield _document(file, row, data, settings.text)

    def identity(self, settings: ReadSettings) -> str:
        """Returns which text is taken."""
        return f"array_record/{settings.text.source}"

    @contextlib.contextmanager
    def _opened(self, file: SourceFile) -> Iterator[Any]:
        library = self.load("array_record.python.array_record_module", file.where)
        if file.local_path is None:
            raise ConfigError(
                f"{file.where}: ArrayRecord files are read from a local disk only. Copy them there."
            )
        with self.explained_errors(file):
            if not file.head(len(_MAGIC)) == _MAGIC:
                raise self.damaged(file, "it does not begin as ArrayRecord files do")
            # Without reading ahead: ranges are read one after another, by several processes.
            reader = library.ArrayRecordReader(str(file.local_path), "readahead_buffer_size:0")
            try:
                yield reader
            finally:
                reader.close()


def _document(file: SourceFile, row: int, data: bytes, text: TextField) -> Document | BadRecord:
    name, where = f"{file.name}#{row}", f"{file.where}:{row}"
    if text.source:
        return read_object(name, where, data, text)
    try:
        return Document(name, data.decode("utf-8"))
    except UnicodeDecodeError as error:
        return BadRecord(where, not_utf8(error))


def _refuse_objects(file: SourceFile, record: bytes) -> None:
    try:
        value = json.loads(record)
    except (ValueError, RecursionError):
        return
    if isinstance(value, dict):
        raise ConfigError(
            f"{file.where}: its records are JSON objects with the columns "
            f"{', '.join(map(repr, list(value)[:8]))}. Set text to one of them, such as text=text."
        )
