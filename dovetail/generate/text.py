"""Text as it is generated: whole characters, and stops that end it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from dovetail.generate.interfaces import TextDecoder, Tokenizer

_UNFINISHED = "\ufffd"  # what decoders write for half a character


class WholeCharacters:
    """Decodes ids as they come with any tokenizer, and never gives out half a character.

    It decodes the latest ids together with a few before them, since some tokenizers write a token
    differently at the beginning of a text, and gives out what is new.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        """Starts with nothing pending."""
        self._tokenizer = tokenizer
        self._context: list[int] = []
        self._pending: list[int] = []

    def push(self, ids: Iterable[int]) -> str:
        """Takes further ids; returns the characters that are complete by now."""
        self._pending.extend(ids)
        text = self._new_text()
        if not text or text.endswith(_UNFINISHED):
            return ""
        self._context, self._pending = self._pending, []
        return text

    def finish(self) -> str:
        """Returns what is pending, complete or not."""
        text = self._new_text()
        self._context, self._pending = [], []
        return text

    def _new_text(self) -> str:
        if not self._pending:
            return ""
        known = self._tokenizer.decode(self._context) if self._context else ""
        return self._tokenizer.decode(self._context + self._pending)[len(known) :]


class StopTexts:
    """Passes text on until a stop appears; holds back what may be the beginning of one."""

    def __init__(self, stops: Sequence[str]) -> None:
        """Starts with nothing held back."""
        self._stops = tuple(stops)
        self._held = ""
        self.found = False

    def push(self, text: str) -> str:
        """Takes further text; returns what certainly stands before any stop."""
        if self.found:
            return ""
        self._held += text
        starts = [start for stop in self._stops if (start := self._held.find(stop)) >= 0]
        if starts:
            self.found = True
            return self._give(min(starts))
        return self._give(len(self._held) - self._possible_beginning())

    def finish(self) -> str:
        """Returns what was held back, now that no stop can follow."""
        return "" if self.found else self._give(len(self._held))

    def _give(self, count: int) -> str:
        given, self._held = self._held[:count], self._held[count:]
        return given

    def _possible_beginning(self) -> int:
        """Returns the length of the longest end of the text that begins a stop."""
        longest = min(max(map(len, self._stops), default=1) - 1, len(self._held))
        for length in range(longest, 0, -1):
            end = self._held[-length:]
            if any(stop.startswith(end) for stop in self._stops):
                return length
        return 0


class RowText:
    """The text of one row: a decoder of ids, with stops behind it."""

    def __init__(self, decoder: TextDecoder, stops: Sequence[str]) -> None:
        """Starts an empty text."""
        self._decoder = decoder
        self._stops = StopTexts(stops)

    @property
    def stopped(self) -> bool:
        """Whether a stop text was found."""
        return self._stops.found

    def push(self, ids: Iterable[int]) -> str:
        """Takes further ids; returns the text that is certain by now."""
        return self._stops.push(self._decoder.push(ids))

    def finish(self) -> str:
        """Returns the rest of the text. A stop may still be found in it."""
        return self._stops.push(self._decoder.finish()) + self._stops.finish()
