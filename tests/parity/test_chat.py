"""Chat templates against transformers: the same texts, the same tokens, the same answers."""

from __future__ import annotations

import importlib.util
import os
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from transformers import PreTrainedTokenizerFast

from dovetail.data.chat import (
    ChatEncoder,
    ChatTemplate,
    ChatTemplateError,
    EncodedChat,
    read_conversation,
)
from dovetail.data.chat.records import Conversation
from tests.data.chat.formats import (
    CASES,
    CONVERSATIONS,
    FORMATS,
    MULTI_TURN,
    NOW,
    chat_template,
    load,
    template_text,
    write_byte_level,
)


@pytest.fixture(autouse=True)
def date(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same date for both: transformers reads the clock."""
    import transformers.utils.chat_template_utils as utils

    class Frozen(type(NOW)):  # type: ignore[misc]
        @classmethod
        def now(cls, tz: Any = None) -> Any:
            return NOW

    monkeypatch.setattr(utils, "datetime", Frozen)
    utils._compile_jinja_template.cache_clear()


def reference(name: str, blocks: bool, folder: Path) -> PreTrainedTokenizerFast:
    FORMATS[name].tokenizer(folder)
    file = os.fspath(folder / "tokenizer.json")
    tokens = dict(FORMATS[name].special_tokens)
    text = template_text(name, blocks)
    return PreTrainedTokenizerFast(tokenizer_file=file, chat_template=text, **tokens)


def conversation(name: str) -> Conversation:
    result = read_conversation(CONVERSATIONS[name], name)
    assert isinstance(result, Conversation)
    return result


def encoded(name: str, record: dict[str, Any], blocks: bool, folder: Path) -> list[EncodedChat]:
    encoder = ChatEncoder(chat_template(name, blocks), FORMATS[name].tokenizer(folder))
    result = encoder.encode(record)
    assert isinstance(result, list), result
    return result


@pytest.mark.parametrize(("name", "case", "blocks"), CASES)
def test_texts_are_those_of_transformers(
    name: str, case: str, blocks: bool, tmp_path: Path
) -> None:
    chat, theirs = conversation(case), reference(name, blocks, tmp_path)
    for count in range(1, len(chat.messages) + 1):
        messages, tools = list(chat.messages[:count]), chat.tools and list(chat.tools)
        for prompt in (False, True):
            if name == "deepseek-r1" and messages[-1]["role"] == "assistant":
                prompt = False
            ours = chat_template(name, blocks).render(messages, chat.tools, prompt)
            assert ours == theirs.apply_chat_template(
                messages, tools=tools, add_generation_prompt=prompt, tokenize=False
            )


@pytest.mark.parametrize(("name", "case", "blocks"), CASES)
def test_tokens_and_masks_are_those_of_transformers(
    name: str, case: str, blocks: bool, tmp_path: Path
) -> None:
    """Of the last turn alone, if the template rewrites earlier ones."""
    theirs = reference(name, True, tmp_path)
    examples = encoded(name, CONVERSATIONS[case], blocks, tmp_path)
    chat = conversation(case)
    expected = theirs.apply_chat_template(
        list(chat.messages),
        tools=chat.tools and list(chat.tools),
        return_assistant_tokens_mask=True,
        return_dict=True,
    )
    last = examples[-1]
    np.testing.assert_array_equal(last.ids, expected["input_ids"])
    mask = np.array(expected["assistant_masks"])
    if len(examples) > 1:  # only the answers that are as generated
        first = int(np.argmax(last.weights > 0))
        assert mask[:first].any() or name in ("deepseek-r1", "harmony")
        mask[:first] = 0
    np.testing.assert_array_equal(last.weights, mask)


@pytest.mark.parametrize("name", FORMATS)
def test_typed_tokens_are_text_as_in_transformers(name: str, tmp_path: Path) -> None:
    """With `sanitize_control_tokens`, which transformers has, but does not set."""
    typed = "".join(f"a {token}b" for token in FORMATS[name].tokens)
    asked, answer, *_ = MULTI_TURN["messages"]
    reasoning = {"reasoning_content": "So."} if name == "deepseek-r1" else {}
    messages = [{**asked, "content": typed}, {**answer, **reasoning, "content": f"yes {typed}"}]
    theirs = reference(name, False, tmp_path)
    theirs.chat_control_tokens = []
    expected = theirs.apply_chat_template(messages, sanitize_control_tokens=True, return_dict=True)
    (ours,) = encoded(name, {"messages": messages}, False, tmp_path)
    np.testing.assert_array_equal(ours.ids, expected["input_ids"])


def published() -> list[str]:
    """Returns the names of trl's templates for training, which have generation blocks."""
    trl = importlib.util.find_spec("trl")
    folder = Path(trl.origin).parent / "chat_templates" if trl and trl.origin else Path("none")
    return sorted(file.stem.removesuffix("_training") for file in folder.glob("*_training.jinja"))


# What ends a turn, where it is not <|im_end|>.
ENDS = {
    "cohere": "<|END_OF_TURN_TOKEN|>",
    "gemma": "<end_of_turn>",
    "glm4moe": "<|endoftext|>",
    "llama3": "<|eot_id|>",
    "phi3": "<|endoftext|>",
}
# Their blocks begin before the generation prompt ends, so the model would be trained on what it is
# given; or the generation prompt begins a reasoning that the template drops; or they want images.
REFUSED = (
    *("deepseek", "gptoss", "idefics3", "llava", "muse", "nemotron", "qwen2_5", "qwen3_5"),
    *("qwen3_6", "qwen3_8", "smolvlm"),
)
REFUSED_WITHOUT_BLOCKS = ("deepseek", "idefics3", "llava", "smolvlm")
# Its block ends with the content, without the end of the turn. transformers then leaves out the
# last tokens of a character that has several.
SPLIT_CHARACTERS = "diffusion_gemma"


@pytest.mark.parametrize("name", published())
def test_templates_of_trl(name: str, tmp_path: Path) -> None:
    """Published templates: accepted with the mask of transformers, or refused with a reason."""
    spec = importlib.util.find_spec("trl")
    assert spec is not None
    assert spec.origin is not None
    file = Path(spec.origin).parent / "chat_templates" / f"{name}_training.jinja"
    text = file.read_text(encoding="utf-8")
    end = next((end for key, end in ENDS.items() if name.startswith(key)), "<|im_end|>")
    end = "<turn|>" if name == SPLIT_CHARACTERS else end
    found = re.findall(r"<[|｜][^<>{}'\"\s]*?[|｜]>|<(?:start|end)_of_\w+>|<\|turn>", text)
    write_byte_level(tmp_path, tuple(sorted({*found, end, "<s>"})))
    tokens = {"bos_token": "<s>", "eos_token": end}
    template = ChatTemplate(text, tokens, now=NOW)
    if name.startswith(REFUSED) and name != "qwen2_5_vl":
        with pytest.raises(ChatTemplateError):
            ChatEncoder(template, load(tmp_path))
        if not name.startswith(REFUSED_WITHOUT_BLOCKS):
            ChatEncoder(template.without_generation_blocks(), load(tmp_path))
        return
    theirs = PreTrainedTokenizerFast(
        tokenizer_file=os.fspath(tmp_path / "tokenizer.json"), chat_template=text, **tokens
    )
    encoder, plain = ChatEncoder(template, load(tmp_path)), template.without_generation_blocks()
    without = ChatEncoder(plain, load(tmp_path))
    for case in ("plain", "multi-turn", "reasoning"):
        expected = theirs.apply_chat_template(
            list(conversation(case).messages), return_assistant_tokens_mask=True, return_dict=True
        )
        for each in (encoder, without):
            examples = each.encode(CONVERSATIONS[case])
            assert isinstance(examples, list), examples
            last, mask = examples[-1], np.array(expected["assistant_masks"])
            np.testing.assert_array_equal(last.ids, expected["input_ids"])
            if len(examples) > 1:
                mask[: int(np.argmax(last.weights > 0))] = 0
            more = last.weights != mask
            text_of = [theirs.decode(token) for token in last.ids[more]]
            allowed = {"�"} if name == SPLIT_CHARACTERS else set()
            allowed |= (
                {"\n", "<|endoftext|>"} if each is without else set()
            )  # after the end of a turn
            assert set(text_of) <= allowed
