"""UTF-8 text: a file is a document, and a long one is several."""

from __future__ import annotations

from collections.abc import Iterator
from typing import BinaryIO

from dovetail.data.interfaces import BadRecord, CorpusShard, Document
from dovetail.data.sources.formats.base import FileFormat, FileHead, ReadSettings
from dovetail.data.sources.source_file import SourceFile

_BLOCK_BYTES = 2**20
_LONGEST_CHARACTER = 4


class PlainText(FileFormat):
    """UTF-8 text. A file longer than `passage_bytes` is split at line ends into passages.

    A document is named `file`, or `file#passage` if there are several, counted from 0.
    """

    title = "text"
    has_records = False
    suffixes = (".txt", ".md", ".rst", ".text")

    def recognizes(self, head: FileHead) -> bool:
        """Says whether the bytes are UTF-8, or the name is that of a text.

        JSON that is not JSON Lines is text only for those who name this format.
        """
        if b"\0" in head.data or head.name.lower().endswith(".json"):
            return False
        return is_utf8(head) or head.name.lower().endswith(self.suffixes)

    def read(
        self, file: SourceFile, shard: CorpusShard, settings: ReadSettings
    ) -> Iterator[Document | BadRecord]:
        """Yields the passages of a file."""
        with self.explained_errors(file), file.open() as stream:
            passages = cut_passages(stream, settings.passage_bytes)
            first, second = next(passages), next(passages, None)
            if second is None:
                yield _document(file, "", first, 0)
                return
            offset = 0
            for index, passage in enumerate(_chain(first, second, passages)):
                yield _document(file, f"#{index}", passage, offset)
                offset += len(passage)

    def identity(self, settings: ReadSettings) -> str:
        """Returns the length of passages."""
        return str(settings.passage_bytes)


def cut_passages(stream: BinaryIO, limit: int) -> Iterator[bytes]:
    """Yields consecutive passages of at most `limit` bytes, split at line ends where possible.

    An empty stream is one empty passage.
    """
    data = b""
    while True:
        more = stream.read(max(limit, _BLOCK_BYTES))
        data += more
        start = 0
        while len(data) - start > limit:
            end = _end_of_passage(data, start, limit)
            yield data[start:end]
            start = end
        data = data[start:]
        if not more:
            yield data
            return


def is_utf8(head: FileHead) -> bool:
    """Says whether the first bytes of a file are UTF-8, up to a character that they cut."""
    try:
        head.data.decode("utf-8")
    except UnicodeDecodeError as error:
        return head.is_cut and "unexpected end" in error.reason
    return True


def not_utf8(error: UnicodeDecodeError, offset: int = 0) -> str:
    """Returns the problem of bytes that are not UTF-8."""
    byte = error.object[error.start]
    return f"not UTF-8 text (byte {offset + error.start} is 0x{byte:02x})"


def _end_of_passage(data: bytes, start: int, limit: int) -> int:
    end = data.rfind(b"\n", start, start + limit) + 1
    if end > start:
        return end
    end = start + limit
    for shorter in range(_LONGEST_CHARACTER):  # not inside a character
        if data[end - shorter] & 0xC0 != 0x80:
            return end - shorter
    return end  # bytes that are no characters


def _document(file: SourceFile, number: str, passage: bytes, offset: int) -> Document | BadRecord:
    try:
        return Document(file.name + number, passage.decode("utf-8"))
    except UnicodeDecodeError as error:
        return BadRecord(file.where, not_utf8(error, offset))


def _chain(first: bytes, second: bytes, rest: Iterator[bytes]) -> Iterator[bytes]:
    yield first
    yield second
    yield from rest
