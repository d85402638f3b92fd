"""Checks of a template, before any conversation: can it say where its answers are?

Three questions of one word are rendered. What is wrong with a template shows in them, so it is
refused with an example that fits on a line, and not in the middle of a corpus.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from dovetail.data.chat.answers import TurnEnds
from dovetail.data.chat.errors import (
    ChatTemplateError,
    ConversationError,
    common_length,
    show,
    show_difference,
)
from dovetail.data.chat.renderer import MessagePrefix, Rendering
from dovetail.data.chat.template import ChatTemplate, Message
from dovetail.data.chat.typed_tokens import MarkedText, pattern_of

# Words that no template has in its own text.
_ASKED, _ANSWERED, _ASKED_AGAIN, _REASONED = "qwzasked", "qwzanswered", "qwzagain", "qwzreasoned"
_TOOL = {
    "type": "function",
    "function": {
        "name": "qwztool",
        "description": "A tool.",
        "parameters": {"type": "object", "properties": {}},
    },
}

USES_BLOCKS = re.compile(r"\{%[-+]?\s*generation\s*[-+]?%\}")


@dataclass(frozen=True)
class _Probe:
    """The renderings of one question, one answer and a second question."""

    bare: Rendering
    prompt: Rendering
    answered: Rendering
    asked_again: Rendering

    @property
    def header(self) -> str:
        """What comes between the prompt and the words of the assistant."""
        rest = self.answered.text[len(self.prompt.text) :]
        words = (word for word in (_REASONED, _ANSWERED) if word in rest)
        return rest[: min(map(rest.index, words), default=0)]

    @property
    def is_separable(self) -> bool:
        """Whether the prompt is the beginning of what is rendered with the answer."""
        return self.answered.text.startswith(self.prompt.text)


def check_template(
    template: ChatTemplate, special_tokens: Mapping[str, int], with_tools: bool = False
) -> TurnEnds:
    """Returns what ends a turn, or raises a ChatTemplateError that says what is wrong."""
    tools = [_TOOL] if with_tools else None
    special = pattern_of({*template.special_tokens.values(), *special_tokens})
    probe = _probe(template, tools, {})
    if not probe.is_separable and _ANSWERED in probe.answered.text:
        reasoned = _probe(template, tools, {"reasoning_content": _REASONED})
        probe = reasoned if reasoned.is_separable else probe
    _check_presence(probe)
    _check_separable(probe)
    _check_header(probe)
    usual = _usual_end(probe, template, special)
    ends = TurnEnds(special, usual)
    if USES_BLOCKS.search(template.text_for(with_tools)):
        _check_blocks(probe, ends)
    return ends


def _probe(
    template: ChatTemplate, tools: Sequence[Message] | None, reasoning: Mapping[str, str]
) -> _Probe:
    question = {"role": "user", "content": _ASKED}
    answer = {"role": "assistant", "content": _ANSWERED, **reasoning}
    again = {"role": "user", "content": _ASKED_AGAIN}
    prefixes = [
        MessagePrefix(1),
        MessagePrefix(1, add_generation_prompt=True),
        MessagePrefix(2),
        MessagePrefix(3),
    ]
    try:
        return _Probe(*template.render_prefixes([question, answer, again], tools, prefixes))
    except ConversationError as error:
        raise ChatTemplateError(
            f"The chat template cannot render a question, its answer and a second question. {error}"
        ) from error


def _check_presence(probe: _Probe) -> None:
    text = probe.answered.text
    if _ASKED not in probe.prompt.text:
        raise ChatTemplateError(
            f"The chat template drops the user's turn: of the question {_ASKED!r} it renders "
            f"{probe.prompt.text!r}. Every token would be trained on. Let it write every message."
        )
    if _ANSWERED not in text:
        raise ChatTemplateError(
            f"The chat template drops the assistant's turn: of the answer {_ANSWERED!r} it renders "
            f"{text!r}. Nothing would be trained on. Let it write messages of the assistant."
        )
    if text.index(_ANSWERED) < text.index(_ASKED):
        raise ChatTemplateError(
            "The chat template puts the answer before its prompt, so the answer cannot be "
            f"predicted from it: {text!r}. Let it write messages in their order."
        )


def _check_separable(probe: _Probe) -> None:
    if probe.is_separable:
        return
    prompt, text = probe.prompt.text, probe.answered.text
    cause = f"{show_difference(prompt, text)}."
    if common_length(prompt, text) >= len(probe.bare.text) and prompt.startswith(probe.bare.text):
        cause += (
            " The generation prompt has what the assistant's turn has not: write both alike (and "
            "the reasoning of the last turns, if the prompt begins it)."
        )
    raise ChatTemplateError(
        "The chat template does not say where an answer is: with add_generation_prompt=True it "
        f"renders another prompt than before the answer; {cause} Marking the answer with "
        "{% generation %} does not help: the model would still be given the other prompt."
    )


def _check_header(probe: _Probe) -> None:
    """Refuses a mask that would begin before the answer, at what a generation prompt should say."""
    header, text = probe.header, probe.answered.text
    shown = show(text, [(len(probe.prompt.text), len(text))])
    if header.strip() and probe.prompt.text == probe.bare.text:
        raise ChatTemplateError(
            "The chat template ignores add_generation_prompt, so the answer would begin with "
            f"{header!r}: {shown}. Add to its end: {{% if add_generation_prompt %}}"
            f"{{{{ {header!r} }}}}{{% endif %}}."
        )
    if "\n" in header and not header.strip():
        raise ChatTemplateError(
            f"The chat template puts {header!r} between the generation prompt and the answer, so "
            f"the answer would begin with it: {shown}. Whitespace at the end of the generation "
            "prompt is trimmed; keep it."
        )


def _usual_end(probe: _Probe, template: ChatTemplate, special: re.Pattern[str]) -> str:
    """Returns the token that ends an answer of plain text, which is no later turn's beginning."""
    final = probe.answered.text.rpartition(_ANSWERED)[2]
    before = probe.asked_again.text.partition(_ASKED_AGAIN)[0]
    _check_history(probe, before)
    in_history = before.rpartition(_ANSWERED)[2]
    found = special.findall(final)
    first = special.search(final)
    if first is None or final[: first.start()].strip():
        raise ChatTemplateError(
            "The chat template ends the assistant's turn with no end-of-turn token, so the model "
            f"would not learn to stop: {show(probe.answered.text, [_answer(probe)])}. Let it write "
            "eos_token after every message of the assistant; the special tokens that it and the "
            f"tokenizer have: {sorted(set(template.special_tokens.values()))}."
        )
    shared = special.findall(final[: common_length(final, in_history)])
    if shared:
        return str(shared[-1])
    openers = {template.special_tokens.get("bos_token", ""), *_openers(probe, special)}
    end = special.search(in_history)
    if end is None or in_history[: end.start()].strip() or end.group() in openers:
        raise ChatTemplateError(
            f"The chat template writes the end-of-turn token {found[0]!r} after the last answer "
            f"alone; an earlier one is followed by {in_history!r}: {probe.asked_again.text!r}. The "
            "model would read answers without an end. Let the template write it after every "
            "message of the assistant."
        )
    return str(found[0])  # history has an end of its own


def _openers(probe: _Probe, special: re.Pattern[str]) -> list[str]:
    """Returns the special tokens that begin a turn, of the assistant or of the user."""
    prompt, bare = probe.prompt.text, probe.bare.text
    of_assistant = special.findall(prompt[common_length(prompt, bare) :])
    of_user = special.findall(bare.partition(_ASKED)[0])
    return [*of_assistant, *of_user[-1:]]


def _check_history(probe: _Probe, before: str) -> None:
    if _ANSWERED not in before:
        raise ChatTemplateError(
            "The chat template drops an answer as soon as another question follows: "
            f"{probe.asked_again.text!r}. Let it write every message."
        )


def _answer(probe: _Probe) -> tuple[int, int]:
    return len(probe.prompt.text), len(probe.answered.text)


def _check_blocks(probe: _Probe, ends: TurnEnds) -> None:
    """Refuses generation blocks that are not around the answer, with its end, and nothing else."""
    start, text = len(probe.prompt.text), probe.answered.text
    end = ends.find(MarkedText(text), start)
    assert end is not None
    shown = show(text, probe.answered.blocks)
    blocks = [block for block in probe.answered.blocks if block[1] > block[0]]
    if probe.bare.blocks or len(probe.asked_again.blocks) > len(probe.answered.blocks):
        asked = show(probe.asked_again.text, probe.asked_again.blocks)
        problem = f"covers a turn of the user: {asked}"
    elif not blocks:
        problem = f"is around no answer, so nothing would be trained on: {shown}"
    elif blocks[0][0] != start:
        away = blocks[0][0] - start
        problem = f"begins {away:+d} characters from the end of the generation prompt: {shown}"
    elif blocks[-1][1] < end:
        missed = text[blocks[-1][1] : end]
        problem = f"misses the end-of-turn token {missed!r}: {shown}"
    else:
        return
    raise ChatTemplateError(
        f"The chat template's {{% generation %}} block {problem}. Put it around the answer and the "
        "token that ends its turn, right after the generation prompt; or use "
        "template.without_generation_blocks(), so that answers are found by their prompts."
    )
