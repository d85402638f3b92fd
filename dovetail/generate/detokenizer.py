"""Incremental detokenization and stop strings."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from dovetail.generate.interfaces import Detokenizer, TokenizerLike

_INCOMPLETE = "\ufffd"  # decoders write this for an incomplete UTF-8 character


class IncrementalDetokenizer:
    """Decodes a stream of ids with any tokenizer, in complete characters.

    New ids are decoded together with the ids before them, because some tokenizers decode a token
    differently at the start of a text. The new suffix is returned.
    """

    def __init__(self, tokenizer: TokenizerLike) -> None:
        self._tokenizer = tokenizer
        self._context: list[int] = []
        self._pending: list[int] = []

    def push(self, ids: Iterable[int]) -> str:
        """Adds ids and returns the characters that they complete."""
        self._pending.extend(ids)
        text = self._new_text()
        if not text or text.endswith(_INCOMPLETE):
            return ""
        self._context, self._pending = self._pending, []
        return text

    def finish(self) -> str:
        """Returns the pending text, complete or not."""
        text = self._new_text()
        self._context, self._pending = [], []
        return text

    def _new_text(self) -> str:
        if not self._pending:
            return ""
        known = self._tokenizer.decode(self._context) if self._context else ""
        return self._tokenizer.decode(self._context + self._pending)[len(known) :]


class StopStrings:
    """Truncates a text stream at the first stop string; holds back a possible prefix of one."""

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = tuple(stops)
        self._buffer = ""
        self.found = False

    def push(self, text: str) -> str:
        """Adds text and returns what is certainly before any stop string."""
        if self.found:
            return ""
        self._buffer += text
        starts = [start for stop in self._stops if (start := self._buffer.find(stop)) >= 0]
        if starts:
            self.found = True
            return self._flush(min(starts))
        return self._flush(len(self._buffer) - self._partial_stop())

    def finish(self) -> str:
        """Returns the buffered text, once the stream has ended."""
        return "" if self.found else self._flush(len(self._buffer))

    def _flush(self, count: int) -> str:
        given, self._buffer = self._buffer[:count], self._buffer[count:]
        return given

    def _partial_stop(self) -> int:
        """Returns the length of the longest suffix that is a prefix of a stop string."""
        longest = min(max(map(len, self._stops), default=1) - 1, len(self._buffer))
        for length in range(longest, 0, -1):
            suffix = self._buffer[-length:]
            if any(stop.startswith(suffix) for stop in self._stops):
                return length
        return 0


class TextStream:
    """The text of one row: a detokenizer followed by stop strings."""

    def __init__(self, detokenizer: Detokenizer, stops: Sequence[str]) -> None:
        self._detokenizer = detokenizer
        self._stops = StopStrings(stops)

    @property
    def stopped(self) -> bool:
        """Whether a stop string was found."""
        return self._stops.found

    def push(self, ids: Iterable[int]) -> str:
        """Adds ids and returns the text that is ready to stream."""
        return self._stops.push(self._detokenizer.push(ids))

    def finish(self) -> str:
        """Returns the rest of the text. It may still contain a stop string."""
        return self._stops.push(self._detokenizer.finish()) + self._stops.finish()
