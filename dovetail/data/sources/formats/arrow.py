"""Arrow IPC, as files and as streams; `datasets.save_to_disk` writes streams."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, BinaryIO

from dovetail.data.interfaces import BadRecord, CorpusShard, Document
from dovetail.data.sources.formats.base import FileFormat, FileHead, ReadSettings
from dovetail.data.sources.formats.columns import columns_to_read, read_batches
from dovetail.data.sources.source_file import SourceFile

_FILE_MAGIC = b"ARROW1"
_CONTINUATION = b"\xff\xff\xff\xff"  # begins each message of a stream; its size follows


class Arrow(FileFormat):
    """Arrow IPC files and streams. A file is one shard; a document is named `file#row`, from 0.

    A file is not cut, because only its record batches say how many rows they have.
    """

    title = "Arrow"
    suffixes = (".arrow", ".feather", ".arrows")

    def recognizes(self, head: FileHead) -> bool:
        """Says whether the file begins as an Arrow file or an Arrow stream does."""
        size = int.from_bytes(head.data[4:8], "little", signed=True)
        is_stream = head.data.startswith(_CONTINUATION) and size > 0 and size % 8 == 0
        return is_stream or head.data.startswith(_FILE_MAGIC)

    def read(
        self, file: SourceFile, shard: CorpusShard, settings: ReadSettings
    ) -> Iterator[Document | BadRecord]:
        """Yields the rows of a file, one record batch in memory at a time."""
        ipc = self.load("pyarrow.ipc", file.where)
        is_file = file.head(len(_FILE_MAGIC)) == _FILE_MAGIC
        with self.explained_errors(file), file.open() as stream:
            names = (ipc.open_file if is_file else ipc.open_stream)(stream).schema.names
            stream.seek(0)
            wanted = columns_to_read(file, names, settings.text)
            options = ipc.IpcReadOptions(
                included_fields=[names.index(name) for name in wanted], use_threads=False
            )
            batches = (_file_batches if is_file else _stream_batches)(ipc, stream, options)
            yield from read_batches(
                file, batches, 0, settings.text, lambda name: self.load(name, file.where)
            )

    def identity(self, settings: ReadSettings) -> str:
        """Returns which text is taken."""
        return f"arrow/{settings.text.source}"


def _file_batches(ipc: Any, stream: BinaryIO, options: Any) -> Iterator[Any]:
    reader = ipc.open_file(stream, options=options)
    return (reader.get_batch(index) for index in range(reader.num_record_batches))


def _stream_batches(ipc: Any, stream: BinaryIO, options: Any) -> Iterator[Any]:
    return iter(ipc.open_stream(stream, options=options))
