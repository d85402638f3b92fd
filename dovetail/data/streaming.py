"""Text as it is generated: ids go in one by one, whole characters come out."""

from __future__ import annotations

import codecs
from collections.abc import Iterable

from dovetail.data.interfaces import Tokenizer


class StreamingDecoder:
    """Decodes ids as they come, and never gives out half a character.

    What it has given out by the end, with `finish()`, is what `tokenizer.decode` gives for all ids.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        """Starts with nothing pending."""
        self._tokenizer = tokenizer
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")

    def push(self, ids: Iterable[int]) -> str:
        """Takes further ids; returns the characters that are complete by now."""
        return self._decoder.decode(self._tokenizer.decode_bytes(ids))

    def finish(self) -> str:
        """Returns what is pending, as replacement characters, and starts anew."""
        rest = self._decoder.decode(b"", final=True)
        self._decoder.reset()
        return rest
