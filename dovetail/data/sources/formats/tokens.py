"""Documents that are token ids already: what Megatron's and NumPy's files have in common."""

from __future__ import annotations

from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from dovetail.data.interfaces import BadRecord, Document
from dovetail.data.sources.formats.base import FileFormat, ReadSettings
from dovetail.data.sources.source_file import SourceFile

_LARGEST_ID = 2**31 - 1


class TokenFormat(FileFormat):
    """The base of formats of token ids."""

    has_records = False

    class Config(FileFormat.Config):
        """What the files have beside the tokens of texts."""

        end_of_document: int | None = None
        """The id with which documents end in the files. It is left out of `Document.ids`, because
        an end of text is added to every document."""

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self._end = config.end_of_document

    def identity(self, settings: ReadSettings) -> str:
        """Returns which token is left out."""
        return f"{self.title}/{self._end}"

    def document(self, file: SourceFile, index: int, ids: NDArray[Any]) -> Document | BadRecord:
        """Returns a document of token ids, or what is wrong with them."""
        if len(ids) and self._end is not None and ids[-1] == self._end:
            ids = ids[:-1]
        if len(ids):
            low, high = int(ids.min()), int(ids.max())
            if low < 0 or high > _LARGEST_ID:
                bad = low if low < 0 else high
                return BadRecord(
                    f"{file.where}:{index}",
                    f"the token id {bad} is not between 0 and {_LARGEST_ID}",
                )
        return Document(f"{file.name}#{index}", ids=ids.astype(np.int32))


def read_array(stream: BinaryIO, offset: int, count: int, dtype: np.dtype[Any]) -> NDArray[Any]:
    """Reads `count` numbers from an offset; an EOFError if there are fewer."""
    stream.seek(offset)
    data = stream.read(count * dtype.itemsize)
    if len(data) < count * dtype.itemsize:
        raise EOFError(
            f"{count:,} numbers of {dtype.itemsize} bytes should begin at byte {offset:,}, and the "
            f"file ends after {len(data):,} bytes of them"
        )
    return np.frombuffer(data, dtype)
