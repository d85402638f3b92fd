"""Every published format: its answers, and nothing else, are trained on."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from dovetail.data.chat import ChatEncoder, ChatTemplate, ChatTemplateError, EncodedChat
from tests.data.chat.formats import CASES, CONVERSATIONS, FORMATS, NOW, chat_template, template_text


def encoded(name: str, conversation: str, blocks: bool, folder: Path) -> list[EncodedChat]:
    form = FORMATS[name]
    encoder = ChatEncoder(chat_template(name, blocks), form.tokenizer(folder))
    result = encoder.encode(CONVERSATIONS[conversation], conversation)
    assert isinstance(result, list), result
    return result


def answers(examples: list[EncodedChat]) -> list[str]:
    return [each.text[a:b] for each in examples for a, b in each.answers]


@pytest.mark.parametrize(("name", "conversation", "blocks"), CASES)
def test_every_answer_is_trained_on_once(
    name: str, conversation: str, blocks: bool, tmp_path: Path
) -> None:
    examples = encoded(name, conversation, blocks, tmp_path)
    messages = CONVERSATIONS[conversation]["messages"]
    asked = [m for m in messages if m["role"] == "assistant"]
    found = answers(examples)
    assert len(found) == len(asked)
    for text, message in zip(found, asked, strict=True):
        assert message["content"].strip() in text
        assert message.get("reasoning_content", "") in text
        assert all(m["content"] not in text for m in messages if m["role"] in ("user", "system"))
    assert (len(examples) > 1) == (conversation in FORMATS[name].rewrites)


@pytest.mark.parametrize(("name", "conversation", "blocks"), CASES)
def test_the_tokens_of_the_answers_have_weight(
    name: str, conversation: str, blocks: bool, tmp_path: Path
) -> None:
    tokenizer = FORMATS[name].tokenizer(tmp_path)
    for each in encoded(name, conversation, blocks, tmp_path):
        trained = tokenizer._ready().decode(each.ids[each.weights > 0], skip_special_tokens=False)
        expected = "".join(each.text[a:b] for a, b in each.answers)
        assert trained.replace(" ", "") == expected.replace(" ", "")
        assert each.ids.dtype == np.int32
        assert each.weights.shape == each.ids.shape


@pytest.mark.parametrize("blocks", [False, True])
@pytest.mark.parametrize("name", [name for name, form in FORMATS.items() if form.answers])
def test_answers_end_with_the_token_that_ends_the_turn(
    name: str, blocks: bool, tmp_path: Path
) -> None:
    found = [text.rstrip("\n") for text in answers(encoded(name, "multi-turn", blocks, tmp_path))]
    assert found == list(FORMATS[name].answers)


def test_an_earlier_turn_is_as_it_was_generated(tmp_path: Path) -> None:
    first, second = encoded("chatml-reasoning", "reasoning", False, tmp_path)
    assert "count on" in first.text
    assert "count on" not in second.text
    assert "Doubling" in second.text


def test_a_template_that_drops_all_reasoning_is_refused(tmp_path: Path) -> None:
    """As the published one of DeepSeek R1: its generation prompt begins what no turn has."""
    form = FORMATS["deepseek-r1"]
    text = template_text("deepseek-r1", blocks=False).replace(
        "{{ '<｜Assistant｜><think>\\n' }}{{ message.reasoning_content ~ '\\n</think>\\n\\n' ~ ",
        "{{ '<｜Assistant｜>' ~ ",
    )
    assert "reasoning" not in text
    with pytest.raises(ChatTemplateError, match=r"goes on with '<think>\\n'"):
        ChatEncoder(ChatTemplate(text, form.special_tokens, now=NOW), form.tokenizer(tmp_path))


def test_a_block_after_the_last_turn_is_not_one_of_earlier_turns(tmp_path: Path) -> None:
    """As trl writes Phi's: an end of text in a block of its own, after the last turn alone."""
    form, text = FORMATS["phi"], template_text("phi", blocks=True)
    last = "{% elif messages[-1].role == 'assistant' %}{% generation %}{{ eos_token }}"
    last += "{% endgeneration %}{% endif %}"
    text = text.replace("{% else %}{{ eos_token }}{% endif %}", last)
    encoder = ChatEncoder(ChatTemplate(text, form.special_tokens), form.tokenizer(tmp_path))
    first, second = form.answers
    found = encoder.encode(CONVERSATIONS["multi-turn"])
    assert isinstance(found, list)
    assert answers(found) == [first, second, "<|endoftext|>"]
    (example,) = found
    assert example.text.count("<|endoftext|>") == 1
