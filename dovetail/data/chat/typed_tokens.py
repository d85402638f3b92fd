"""Special tokens that somebody typed: `<|im_end|>` in a message is text, and never a token.

If it became a token, a user could end his own turn and begin one of the system. So before a
conversation is rendered, two characters that it does not contain are put around each special token
in its strings. After rendering they are removed, and say which characters are literal. These are
encoded without special tokens, each range apart from the text around it. transformers does the same
with `sanitize_control_tokens=True`; by default it encodes typed tokens as special ones.

What remains: a template that joins two strings of a message may make a token of them. Roles are
from a closed list and pieces of text are joined before rendering, so that no known template does.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dovetail.data.chat.errors import ConversationError, Span
from dovetail.data.chat.records import Conversation
from dovetail.data.chat.renderer import Rendering
from dovetail.data.interfaces import HasOffsets

# Characters that Unicode sets aside for the inside of programs, then private ones.
_CANDIDATES = (*range(0xFDD0, 0xFDF0), *range(0xF0000, 0xFFFFE))


@dataclass(frozen=True)
class MarkedText:
    """A rendered text, without marks.

    Attributes:
        text: the characters.
        literal: the ranges that are ordinary text, although they look like special tokens.
        blocks: the generation blocks of the template.
    """

    text: str
    literal: tuple[Span, ...] = ()
    blocks: tuple[Span, ...] = ()


@dataclass(frozen=True)
class Marks:
    """The two characters around special tokens in content; empty if it has none."""

    start: str = ""
    end: str = ""

    def remove(self, rendering: Rendering) -> MarkedText:
        """Returns a rendering without marks, with the ranges that were between them.

        A template may split a content inside of a marked token. Then what follows a lone mark is
        a range of its own, so that the text on its two sides does not join into a token.
        """
        if not self.start:
            return MarkedText(rendering.text, (), rendering.blocks)
        pieces = re.split(f"([{self.start}{self.end}])", rendering.text)
        literal: list[Span] = []
        removed: list[int] = []
        length, opened = 0, -1
        for piece in pieces:
            if piece not in (self.start, self.end):
                length += len(piece)
                continue
            removed.append(length + len(removed))
            if piece == self.end and opened >= 0:
                literal.append((opened, length))
            else:  # an empty range, which is a border all the same
                literal.append((length, length))
            opened = length if piece == self.start else -1
        text = "".join(pieces[::2])
        blocks = [
            tuple(at - int(np.searchsorted(removed, at)) for at in b) for b in rendering.blocks
        ]
        return MarkedText(text, tuple(literal), tuple((start, end) for start, end in blocks))


def mark_typed_tokens(
    conversation: Conversation, special_tokens: Collection[str]
) -> tuple[Conversation, Marks]:
    """Returns a conversation whose special tokens are between marks, and the marks."""
    whole = json.dumps([conversation.messages, conversation.tools], ensure_ascii=False)
    if not pattern_of(map(_in_json, special_tokens)).search(whole):
        return conversation, Marks()
    free = (chr(code) for code in _CANDIDATES if chr(code) not in whole)
    marks = Marks(next(free), next(free))
    put = partial(pattern_of(special_tokens).sub, f"{marks.start}\\g<0>{marks.end}")
    messages = [
        {key: value if key == "role" else _deep(value, put) for key, value in message.items()}
        for message in conversation.messages
    ]
    tools = None if conversation.tools is None else tuple(_deep(conversation.tools, put))
    marked = Conversation(conversation.name, tuple(messages), tools, conversation.trained)
    return marked, marks


def pattern_of(special_tokens: Iterable[str]) -> re.Pattern[str]:
    """Returns the pattern of any special token; of two at one place, the longer one."""
    longest_first = sorted(filter(None, special_tokens), key=len, reverse=True)
    return re.compile("|".join(map(re.escape, longest_first)) or "(?!)")


def encode_marked(
    tokenizer: HasOffsets, marked: MarkedText
) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
    """Returns the ids of a text and the characters of each, with literal ranges as text."""
    if not marked.literal:
        return tokenizer.encode_with_offsets(marked.text)
    ids, offsets = [], []
    for start, end, literal in _pieces(len(marked.text), marked.literal):
        piece = marked.text[start:end]
        piece_ids, piece_offsets = _encode_piece(tokenizer, piece, literal, is_first=start == 0)
        if literal and tokenizer.special_tokens.get(piece, -1) in piece_ids:
            raise ConversationError(
                f"The tokenizer has no way to write {piece!r} as text, only as a special token. "
                "Remove it from the content."
            )
        ids.append(piece_ids)
        offsets.append(piece_offsets + start)
    return np.concatenate(ids), np.concatenate(offsets)


def _pieces(length: int, literal: Sequence[Span]) -> list[tuple[int, int, bool]]:
    """Returns the ranges between literal ones, and these, in order; empty ones are left out."""
    edges = [edge for span in literal for edge in span]
    starts, ends = [0, *edges], [*edges, length]
    found = zip(starts, ends, strict=True)
    return [(a, b, n % 2 == 1) for n, (a, b) in enumerate(found) if b > a]


def _encode_piece(
    tokenizer: HasOffsets, piece: str, literal: bool, is_first: bool
) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
    """Encodes a piece; one from the middle after a line end, which is removed again.

    SentencePiece puts a space before the first character of a text. It would before each piece.
    """
    if not is_first:
        line_end, _ = tokenizer.encode_with_offsets("\n", literal)
        ids, offsets = tokenizer.encode_with_offsets("\n" + piece, literal)
        count = len(line_end)
        if np.array_equal(ids[:count], line_end) and (len(ids) == count or offsets[count, 0] >= 1):
            return ids[count:], offsets[count:] - 1
    return tokenizer.encode_with_offsets(piece, literal)


def _in_json(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)[1:-1]


def _deep(value: Any, change: Callable[[str], str]) -> Any:
    """Returns a value of JSON with every string changed, keys included."""
    if isinstance(value, str):
        return change(value)
    if isinstance(value, Mapping):
        return {_deep(key, change): _deep(each, change) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_deep(each, change) for each in value]
    return value
