"""From conversations to token ids, with a weight for each: 1 for the tokens of answers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dovetail.data.chat.answers import Example, answer_spans, examples_of, find_turns
from dovetail.data.chat.checks import USES_BLOCKS, check_template
from dovetail.data.chat.errors import ChatTemplateError, ConversationError, Span, show
from dovetail.data.chat.records import Conversation, read_conversation
from dovetail.data.chat.template import ChatTemplate
from dovetail.data.chat.typed_tokens import encode_marked, mark_typed_tokens
from dovetail.data.interfaces import BadRecord, HasOffsets


@dataclass(frozen=True)
class EncodedChat:
    """A text to train on.

    Attributes:
        ids: its tokens.
        weights: for each token whether it counts as a target: 1 in answers, else 0. So the weight
            of the first one never counts, and a row of inputs `ids[:-1]` with targets `ids[1:]`
            has the loss weights `weights[1:]`.
        text: the characters of the tokens.
        answers: the ranges of characters that are trained on.
    """

    ids: NDArray[np.int32]
    weights: NDArray[np.float32]
    text: str
    answers: tuple[Span, ...]

    def show(self) -> str:
        """Returns the text on one line, with `>>>` and `<<<` around the answers."""
        return show(self.text, self.answers)


class ChatEncoder:
    """Encodes conversations with a template and a tokenizer, which are checked first."""

    def __init__(self, template: ChatTemplate, tokenizer: HasOffsets) -> None:
        """Refuses a template that cannot say where answers are (ChatTemplateError)."""
        self._template = template
        self._tokenizer = tokenizer
        # Special tokens of the template alone are ordinary text for this tokenizer.
        self._special = tokenizer.special_tokens
        self._ends = check_template(template, self._special)
        self._ends_with_tools = self._ends
        if template.text_with_tools is not None:
            self._ends_with_tools = check_template(template, self._special, with_tools=True)
        self._check_end(self._ends.usual)
        self._check_end(self._ends_with_tools.usual)

    def encode(self, record: object, name: str = "record") -> list[EncodedChat] | BadRecord:
        """Returns the examples of a record, or what is wrong with it.

        There are several if the template rewrites history, such as by dropping the reasoning of
        earlier turns; else one. Messages after the last answer are left out.
        """
        conversation = (
            record if isinstance(record, Conversation) else read_conversation(record, name)
        )
        if isinstance(conversation, BadRecord):
            return conversation
        try:
            return self._encode(conversation)
        except ConversationError as error:
            return BadRecord(conversation.name, str(error))

    def _encode(self, conversation: Conversation) -> list[EncodedChat]:
        if not any(conversation.trained):
            raise ConversationError("All messages of the assistant have the weight 0.")
        has_tools = conversation.tools is not None
        uses_blocks = USES_BLOCKS.search(self._template.text_for(has_tools)) is not None
        ends = self._ends_with_tools if has_tools else self._ends
        marked, marks = mark_typed_tokens(conversation, self._special)
        turns = find_turns(marked, self._template, marks, ends)
        found = [
            (example, answer_spans(example, uses_blocks, conversation.trained))
            for example in examples_of(turns)
        ]
        return [self._tokenized(example, spans) for example, spans in found if spans]

    def _tokenized(self, example: Example, spans: Sequence[Span]) -> EncodedChat:
        marked = example.rendered
        ids, offsets = encode_marked(self._tokenizer, marked)
        is_special = np.isin(ids, list(self._special.values()))
        weights = token_weights(offsets, spans, is_special)
        for start, end in spans:
            if not token_weights(offsets, [(start, end)], is_special).any():
                raise ConversationError(
                    "An answer has no token of its own: the tokenizer drops its characters: "
                    f"{show(marked.text, [(start, end)])}."
                )
        if weights.all():
            raise ConversationError(
                "Every token is part of an answer, so there is no prompt: "
                f"{show(marked.text, spans)}."
            )
        return EncodedChat(ids, weights, marked.text, tuple(spans))

    def _check_end(self, end: str) -> None:
        """Refuses an end of turn that is many tokens, if the tokenizer has special ones."""
        known = self._special
        if not known:  # it may be untrained
            return
        count = len(self._tokenizer.encode_with_offsets(end)[0])
        if count != 1:
            raise ChatTemplateError(
                f"The chat template ends turns with {end!r}, which is {count} tokens of this "
                f"tokenizer and none of its special ones ({', '.join(sorted(known)[:20])}). The "
                "template belongs to another tokenizer: take both from one folder, or add the "
                "token to tokenizer.json."
            )


def token_weights(
    offsets: NDArray[np.int64], spans: Sequence[Span], is_special: NDArray[np.bool_]
) -> NDArray[np.float32]:
    """Returns 1 for every token that has a character of a span, as in transformers.

    So a token across the border of an answer counts. It exists where an answer begins with
    characters that the tokenizer joins with the end of the prompt, such as a second line end. But a
    special token that begins before the answer is one of the prompt: some take the whitespace
    after them (`rstrip`), and no model should learn to write them.

    Args:
        offsets: the characters of each token, [tokens, 2].
        spans: ranges of characters.
        is_special: whether each token is a special one.
    """
    starts, ends = offsets[:, 0].copy(), np.maximum.accumulate(offsets[:, 1])
    # Some tokenizers leave spaces out of the offsets; they belong to the token after the gap.
    starts[1:] = np.minimum(starts[1:], ends[:-1])
    weights = np.zeros(len(offsets), np.float32)
    for start, end in spans:
        weights[(starts < end) & (ends > start) & ~(is_special & (offsets[:, 0] < start))] = 1
    return weights


def encode_chat(
    record: object, template: ChatTemplate, tokenizer: HasOffsets, name: str = "record"
) -> list[EncodedChat] | BadRecord:
    """Returns the token ids and loss weights of a conversation, or what is wrong with it.

    For many conversations, make a `ChatEncoder`, which checks the template once.

    Args:
        record: a conversation, or an object of JSON in any shape that `read_conversation` knows.
        template: refused with a ChatTemplateError if it cannot say where answers are.
        tokenizer: the one that the template is for.
        name: says where the record is from, for the message.
    """
    return ChatEncoder(template, tokenizer).encode(record, name)
