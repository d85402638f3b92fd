"""Where the answers of a rendered conversation are, by rendering it once more for every answer.

The prompt of an answer is what the template renders before it, with the generation prompt: exactly
what a server gives the model. The answer is what follows when the message is rendered, too, up to
and with the token that ends the turn.

Some templates rewrite history: they drop the reasoning of earlier turns, or end the last turn with
another token. The model then never sees these earlier turns as they were generated. Such a
conversation becomes several examples, each with the answers that its text still has as generated.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from dovetail.data.chat.errors import (
    ConversationError,
    Span,
    common_length,
    show,
    show_difference,
)
from dovetail.data.chat.records import ASSISTANT, Conversation
from dovetail.data.chat.renderer import MessagePrefix
from dovetail.data.chat.template import ChatTemplate
from dovetail.data.chat.typed_tokens import MarkedText, Marks


@dataclass(frozen=True)
class Turn:
    """An answer, in the text that ends with it.

    Attributes:
        message: the number of its message.
        rendered: the conversation up to and with it.
        start: the first character after the generation prompt.
        end: the character after the token that ends the turn.
    """

    message: int
    rendered: MarkedText
    start: int
    end: int

    @property
    def text(self) -> str:
        """The conversation up to and with the answer."""
        return self.rendered.text


@dataclass(frozen=True)
class Example:
    """A text to train on, and those of its answers that are as generated."""

    rendered: MarkedText
    turns: tuple[Turn, ...]


@dataclass(frozen=True)
class TurnEnds:
    """The texts that may end a turn.

    Attributes:
        special: any special token.
        usual: the one that ends an answer of plain text.
    """

    special: re.Pattern[str]
    usual: str

    def find(self, rendered: MarkedText, start: int) -> int | None:
        """Returns where the turn that begins at `start` ends; None if no token ends it.

        Templates go on after that token, with a line end or with an end of text. The model has
        stopped by then.
        """
        text = rendered.text
        literal = {begin for begin, end in rendered.literal if end > begin}
        matches = [m for m in self.special.finditer(text, start) if m.start() not in literal]
        ends, after = [], len(text)
        for match in reversed(matches):
            if text[match.end() : after].strip():
                break
            ends.append(match)
            after = match.start()
        usual = [match for match in ends if match.group() == self.usual]
        # The first of the usual ones; else the last of all, because a call of a tool may end with
        # a token of its own before it.
        return usual[-1].end() if usual else ends[0].end() if ends else None


def find_turns(
    conversation: Conversation, template: ChatTemplate, marks: Marks, ends: TurnEnds
) -> list[Turn]:
    """Returns the answers of a conversation, each in the text up to it."""
    messages, tools = conversation.messages, conversation.tools
    numbers = [n for n, message in enumerate(messages) if message["role"] == ASSISTANT]
    prefixes = [
        prefix
        for n in numbers
        for prefix in (
            MessagePrefix(n, add_generation_prompt=True),
            MessagePrefix(n + 1),
        )
    ]
    rendered = [marks.remove(r) for r in template.render_prefixes(messages, tools, prefixes)]
    pairs = zip(numbers, rendered[::2], rendered[1::2], strict=True)
    return [_turn(number, prompt.text, answered, ends) for number, prompt, answered in pairs]


def _turn(number: int, prompt: str, rendered: MarkedText, ends: TurnEnds) -> Turn:
    where, text = f"message {number} (the assistant's)", rendered.text
    if not text.startswith(prompt):
        raise ConversationError(
            f"{where}: its answer cannot be separated from its prompt: "
            f"{show_difference(prompt, text)}. The model would be trained on another prompt than "
            "it is given. Give the message what the generation prompt begins (reasoning, for "
            "example), or leave the conversation out."
        )
    end = ends.find(rendered, len(prompt))
    if end is None:
        raise ConversationError(
            f"{where}: no token ends its turn, so the model would not learn to stop; expected "
            f"{ends.usual!r} at the end of the answer: "
            f"{show(text, [(len(prompt), len(text))])}. Let the template write it after every "
            "message of the assistant."
        )
    return Turn(number, rendered, len(prompt), end)


def examples_of(turns: Sequence[Turn]) -> list[Example]:
    """Returns the fewest texts that have every answer as generated; one, unless history changes."""
    examples: list[Example] = []
    waiting = list(turns)
    while waiting:
        last = waiting[-1]
        covered = [turn for turn in waiting if last.text.startswith(turn.text[: turn.end])]
        examples.append(Example(last.rendered, tuple(covered)))
        waiting = [turn for turn in waiting if turn not in covered]
    return examples[::-1]


def answer_spans(example: Example, uses_blocks: bool, trained: Sequence[bool]) -> list[Span]:
    """Returns the ranges to train on: the answers, or the template's own generation blocks."""
    spans = []
    for turn in example.turns:
        own = _blocks_in(turn, example) if uses_blocks else [(turn.start, turn.end)]
        if trained[turn.message]:
            spans += own
    return spans


def _blocks_in(turn: Turn, example: Example) -> list[Span]:
    """Returns the blocks of an answer in a text that goes on after it.

    What a template writes after the token that ends the turn may differ there: Phi 3 closes the
    last turn with an end of text. Then a block ends with that token.
    """
    same = common_length(turn.text, example.rendered.text)
    cut = [(start, end if end <= same else turn.end) for start, end in _blocks_of(turn)]
    return [(start, end) for start, end in cut if end > start]


def _blocks_of(turn: Turn) -> list[Span]:
    """Returns the generation blocks of an answer, which must be the answer.

    They are taken from the text that ends with it: what they are in later ones, a template that
    rewrites history decides.
    """
    blocks = [(a, b) for a, b in turn.rendered.blocks if b > turn.start and b > a]
    shown = show(turn.text, blocks)
    where = f"message {turn.message} (the assistant's)"
    if not blocks:
        raise ConversationError(
            f"{where} is in no {{% generation %}} block, so nothing of it would be trained on: "
            f"{show(turn.text, turn.rendered.blocks)}. Put the block around the answer."
        )
    if blocks[0][0] != turn.start:
        raise ConversationError(
            f"{where}: its {{% generation %}} block begins {blocks[0][0] - turn.start:+d} "
            "characters from the end of the generation prompt. The block must begin right after "
            f"it: {shown}. Move {{% generation %}}."
        )
    if blocks[-1][1] < turn.end:
        raise ConversationError(
            f"{where}: its {{% generation %}} block misses the token that ends the turn, "
            f"{turn.text[blocks[-1][1] : turn.end]!r}, so the model would not learn to stop: "
            f"{shown}. Move {{% endgeneration %}} after it."
        )
    return blocks
