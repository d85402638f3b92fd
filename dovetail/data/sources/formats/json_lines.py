"""JSON Lines: one object a line, plain or compressed."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import BinaryIO

from dovetail.data.interfaces import BadRecord, CorpusShard, Document
from dovetail.data.sources.formats import compressed
from dovetail.data.sources.formats.base import FileFormat, FileHead, ReadSettings
from dovetail.data.sources.formats.line_index import LineIndex
from dovetail.data.sources.formats.plain_text import is_utf8, not_utf8
from dovetail.data.sources.source_file import SourceFile
from dovetail.data.sources.text_field import NoTextError, TextField

_LONGEST_LINE = 256 * 2**20
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"


class JSONLines(FileFormat):
    """JSON Lines, also compressed with gzip or zstandard.

    A plain file is cut at line ends, so that one large file is read by many processes. A compressed
    one is one shard. A document is named `file#line`, counted from 1; blank lines are no records.
    """

    title = "JSON Lines"
    suffixes = (".jsonl", ".ndjson", ".jsonlines")

    def __init__(self, config: FileFormat.Config) -> None:
        super().__init__(config)
        self._lines = LineIndex()

    def recognizes(self, head: FileHead) -> bool:
        """Says whether the first lines are JSON objects, or the name says so."""
        if compressed.compression(head.data):
            data = compressed.decompressed_start(
                head.data, lambda: self.load("zstandard", head.name)
            )
            if not data:
                return compressed.without_suffix(head.name).endswith(self.suffixes)
            head = FileHead(compressed.without_suffix(head.name), data, is_cut=True)
        if b"\0" in head.data:
            return False
        if head.name.lower().endswith(self.suffixes):
            return True
        return is_utf8(head) and _looks_like_objects(head)

    def shards(self, file: SourceFile, settings: ReadSettings) -> list[CorpusShard]:
        """Cuts a plain file at line ends."""
        with self.explained_errors(file):
            if compressed.compression(file.head(4)) or not file.size():
                return super().shards(file, settings)
            return self._lines.shards(file, settings.shard_bytes)

    def read(
        self, file: SourceFile, shard: CorpusShard, settings: ReadSettings
    ) -> Iterator[Document | BadRecord]:
        """Yields the objects of a shard."""
        with self.explained_errors(file), file.open() as stream:
            kind = compressed.compression(file.head(4))
            if kind:
                lines = compressed.decompressed(
                    stream, kind, lambda: self.load("zstandard", file.where)
                )
                yield from _records(file, lines, 1, None, settings.text)
                return
            first = self._lines.line(file, shard, settings.shard_bytes)
            stream.seek(shard.start)
            length = None if shard.stop is None else shard.stop - shard.start
            yield from _records(file, stream, first, length, settings.text)

    def identity(self, settings: ReadSettings) -> str:
        """Returns which text is taken."""
        return f"json/{settings.text.source}"


def read_object(name: str, where: str, data: bytes, text: TextField) -> Document | BadRecord:
    """Returns the document of a JSON object, or what is wrong with it."""
    try:
        value = json.loads(data.decode("utf-8"))
    except UnicodeDecodeError as error:
        return BadRecord(where, not_utf8(error))
    except RecursionError:
        return BadRecord(where, "not JSON that can be read: its brackets are nested too deeply")
    except ValueError as error:
        return BadRecord(where, f"not JSON: {error}")
    if not isinstance(value, Mapping):
        return BadRecord(where, f"expected a JSON object, got a {type(value).__name__}")
    try:
        return Document(name, text.text(value))
    except NoTextError as error:
        return BadRecord(where, str(error))


def _records(
    file: SourceFile, stream: BinaryIO, line: int, length: int | None, text: TextField
) -> Iterator[Document | BadRecord]:
    """Yields the records of the lines that begin in the next `length` bytes."""
    position = 0
    while length is None or position < length:
        data = stream.readline(_LONGEST_LINE)
        if not data:
            return
        position += len(data)
        if len(data) == _LONGEST_LINE and not data.endswith(b"\n"):
            while data and not data.endswith(b"\n"):
                data = stream.readline(_LONGEST_LINE)
                position += len(data)
            yield BadRecord(f"{file.where}:{line}", f"longer than {_LONGEST_LINE:,} bytes")
        elif data := (data.removeprefix(_BYTE_ORDER_MARK) if line == 1 else data).strip():
            yield read_object(f"{file.name}#{line}", f"{file.where}:{line}", data, text)
        line += 1


def _looks_like_objects(head: FileHead) -> bool:
    """Says whether the first two lines are JSON objects; one is enough for the name .json."""
    data = head.data.removeprefix(_BYTE_ORDER_MARK)
    lines = [line for line in data.split(b"\n") if line.strip()]
    is_cut = head.is_cut and not data.endswith(b"\n")
    objects = [
        line.lstrip().startswith(b'{"') if is_cut and line is lines[-1] else _is_object(line)
        for line in lines[:2]
    ]
    enough = len(objects) == 2 or is_cut or head.name.lower().endswith(".json")
    return bool(objects) and all(objects) and enough


def _is_object(line: bytes) -> bool:
    try:
        return isinstance(json.loads(line), dict)
    except (ValueError, RecursionError):
        return False
