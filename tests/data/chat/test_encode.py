"""Ids and weights: typed special tokens, any characters, weights of records, other tokenizers."""

from __future__ import annotations

import functools
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer

from dovetail.data import BytePairTokenizer, ByteTokenizer
from dovetail.data.chat import (
    ChatEncoder,
    ChatTemplate,
    ChatTemplateError,
    EncodedChat,
    encode_chat,
)
from dovetail.data.chat.encode import token_weights
from dovetail.data.interfaces import BadRecord
from tests.data.chat.formats import (
    FORMATS,
    MULTI_TURN,
    WITH_REASONING,
    chat_template,
    load,
    template_text,
)

SPECIAL = [
    "<|im_end|>",
    "<|im_start|>",
    "<|im_end|>\n<|im_start|>system\n",
    "</s>",
    "<s>",
    "[INST]",
]
texts = st.lists(st.one_of(st.text(max_size=8), st.sampled_from(SPECIAL)), max_size=6).map("".join)
NAMES = ["chatml", "llama-2", "mistral", "phi"]


@functools.cache
def encoder(name: str, blocks: bool = False) -> ChatEncoder:
    folder = Path(tempfile.mkdtemp())
    return ChatEncoder(chat_template(name, blocks), FORMATS[name].tokenizer(folder))


def encoded(name: str, record: Any, blocks: bool = False) -> list[EncodedChat]:
    result = encoder(name, blocks).encode(record)
    assert isinstance(result, list), result
    return result


def exchange(question: str, answer: str) -> dict[str, Any]:
    return {"prompt": question, "completion": answer}


@pytest.mark.parametrize("name", NAMES)
@given(texts, texts.filter(bool))
@example("a<|im_end|>\n<|im_start|>system\nb", "<|im_end|>")
@example("\ufdd0\ufdd1</s>", "</s><s>")
@example("😀é\x00\r\n", "\n\n")
def test_content_of_any_characters(name: str, question: str, answer: str) -> None:
    """The special tokens are those of a harmless conversation, and the answer alone has weight."""
    (one,) = encoded(name, exchange(question, answer))
    (harmless,) = encoded(name, exchange("q", "a"))
    special = set(encoder(name)._tokenizer.special_tokens.values())
    assert [i for i in one.ids if i in special] == [i for i in harmless.ids if i in special]
    (span,) = one.answers
    assert one.text[span[0] : span[1]].strip(" ").startswith(answer.strip(" "))
    assert question in one.text[: span[0]]
    assert 0 < one.weights.sum() < len(one.ids)
    (with_blocks,) = encoded(name, exchange(question, answer), True)
    np.testing.assert_array_equal(one.weights, with_blocks.weights)


def test_a_typed_end_of_turn_is_text() -> None:
    (one,) = encoded("chatml", exchange("a<|im_end|>b", "c<|im_end|>"))
    end = encoder("chatml")._tokenizer.special_tokens["<|im_end|>"]
    assert list(one.ids).count(end) == 2
    assert one.show().endswith(r">>>c<|im_end|><|im_end|><<<\n")
    assert one.ids[one.weights > 0][-1] == end


def test_typed_tokens_in_names_and_arguments_are_text() -> None:
    call = {"function": {"name": "f<|im_end|>", "arguments": {"<|im_start|>": ["<|im_end|>"]}}}
    messages = [
        {"role": "user", "content": "a"},
        {"role": "assistant", "content": "", "tool_calls": [call]},
    ]
    (one,) = encoded("chatml", {"messages": messages, "tools": [{"name": "<|im_end|>"}]})
    end = encoder("chatml")._tokenizer.special_tokens["<|im_end|>"]
    assert list(one.ids).count(end) == 3  # of the tools, of the question and of the answer
    assert '"<|im_start|>": ["<|im_end|>"]' in one.text


def test_messages_of_weight_0_are_not_trained_on() -> None:
    first, second = (dict(message) for message in MULTI_TURN["messages"][1::2])
    messages = [dict(message) for message in MULTI_TURN["messages"]]
    messages[1]["weight"] = 0
    (one,) = encoded("chatml", {"messages": messages})
    assert [one.text[a:b] for a, b in one.answers] == [f"{second['content']}<|im_end|>"]
    messages[3]["weight"] = 0
    problem = encoder("chatml").encode({"messages": messages}, "file:3")
    assert problem == BadRecord("file:3", "All messages of the assistant have the weight 0.")
    assert first["content"] in one.text


def test_examples_without_a_trained_answer_are_left_out() -> None:
    messages = [dict(message) for message in WITH_REASONING["messages"]]
    messages[1]["weight"] = 0
    (one,) = encoded("chatml-reasoning", {"messages": messages})
    assert "Doubling" in one.show().partition(">>>")[2]


def test_what_follows_the_last_answer_is_left_out() -> None:
    messages = [*MULTI_TURN["messages"], {"role": "user", "content": "and?"}]
    (one,) = encoded("chatml", {"messages": messages})
    (same,) = encoded("chatml", MULTI_TURN)
    np.testing.assert_array_equal(one.ids, same.ids)


@pytest.mark.parametrize(
    ("record", "problem"),
    [
        ({"text": "a"}, "its keys are"),
        (
            {"messages": [{"role": "assistant", "content": "b"}]},
            "Every token is part of an answer, so there is no prompt: >>> b </s><<<",
        ),
        (
            {"messages": [{"role": "tool", "content": "a"}, {"role": "assistant", "content": "b"}]},
            "refuses the conversation: only system, user and assistant",
        ),
    ],
)
def test_conversations_that_do_not_fit(record: Any, problem: str) -> None:
    found = encoder("llama-2").encode(record, "here")
    assert isinstance(found, BadRecord)
    assert found.name == "here"
    assert problem in found.problem


def test_a_turn_without_the_reasoning_that_its_prompt_begins(tmp_path: Path) -> None:
    """The template thinks only with reasoning, but its generation prompt always does."""
    form = FORMATS["chatml"]
    text = template_text("chatml", blocks=False)
    text = text.replace(
        "{{ message.content }}\n{%- for", "{{ THOUGHT }}{{ message.content }}\n{%- for"
    )
    thought = "'<think>' ~ message.reasoning_content ~ '</think>' if message.reasoning_content"
    text = text.replace("THOUGHT", thought).replace(
        "assistant\n{% endif", "assistant\n<think>{% endif"
    )
    encoder = ChatEncoder(ChatTemplate(text, form.special_tokens), form.tokenizer(tmp_path))
    assert isinstance(encoder.encode({"messages": WITH_REASONING["messages"][:2]}), list)
    found = encoder.encode(exchange("a", "b"))
    assert isinstance(found, BadRecord)
    assert re.search(r"message 1 .* goes on with '<think>', .* with 'b<\|im_end\|>", found.problem)


def test_a_template_of_another_tokenizer_is_refused(tmp_path: Path) -> None:
    tokenizer = FORMATS["phi"].tokenizer(tmp_path)
    with pytest.raises(ChatTemplateError, match=r"'<\|im_end\|>', which is \d+ tokens of this"):
        ChatEncoder(chat_template("chatml"), tokenizer)


@pytest.mark.parametrize("trained", [False, True])
def test_tokenizers_without_special_tokens_write_markers_as_text(trained: bool) -> None:
    tokenizer = ByteTokenizer.Config().build()
    if trained:
        tokenizer = BytePairTokenizer.Config(vocab_size=300).build()
        tokenizer.fit(["<|im_start|>user\n<|im_end|>\n<|im_start|>assistant\n"] * 4)
    (one,) = encode_chat(exchange("é😀", "Ja, 六 😀"), chat_template("chatml"), tokenizer)
    assert tokenizer.decode(one.ids) == one.text
    assert tokenizer.decode(one.ids[one.weights > 0]) == "Ja, 六 😀<|im_end|>"


@pytest.mark.parametrize(
    ("offsets", "spans", "weights"),
    [
        ([(0, 2), (2, 4), (4, 6)], [(2, 4)], [0, 1, 0]),
        ([(0, 2), (2, 4), (4, 6)], [(1, 3)], [1, 1, 0]),  # across a border: as transformers
        ([(0, 1), (1, 2), (1, 2), (1, 2), (2, 3)], [(1, 2)], [0, 1, 1, 1, 0]),  # bytes of one
        ([(0, 1), (2, 3), (3, 4)], [(1, 3)], [0, 1, 0]),  # spaces left out of the offsets
        ([(0, 1), (2, 2), (2, 4)], [(1, 4)], [0, 1, 1]),  # a token of one such space
        ([(0, 1), (1, 2)], [], [0, 0]),
    ],
)
def test_weights_of_tokens(
    offsets: list[tuple[int, int]], spans: list[tuple[int, int]], weights: list[int]
) -> None:
    no_special = np.zeros(len(offsets), bool)
    assert token_weights(np.array(offsets), spans, no_special).tolist() == weights


def test_a_role_marker_that_takes_the_whitespace_after_it_has_no_weight(tmp_path: Path) -> None:
    """As those of Phi 3 do; transformers counts it as a token of the answer."""
    tokenizer = FORMATS["phi"].tokenizer(tmp_path)
    model = Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    model.add_special_tokens([AddedToken("<|assistant|>", rstrip=True, normalized=False)])
    model.save(str(tmp_path / "tokenizer.json"))
    result = ChatEncoder(chat_template("phi"), load(tmp_path)).encode(exchange("a", "\n\nb"))
    assert isinstance(result, list)
    trained = result[0].ids[result[0].weights > 0]
    marker = tokenizer.special_tokens["<|assistant|>"]
    assert marker in result[0].ids
    assert marker not in trained
    assert tokenizer.special_tokens["<|end|>"] == trained[-1]


def test_a_template_for_tools_is_checked_too() -> None:
    text = template_text("chatml", blocks=False)
    broken = text.replace("add_generation_prompt", "false")
    template = ChatTemplate(text, FORMATS["chatml"].special_tokens, text_with_tools=broken)
    with pytest.raises(ChatTemplateError, match="ignores add_generation_prompt"):
        ChatEncoder(template, ByteTokenizer.Config().build())


def test_importing_loads_neither_jax_nor_jinja2() -> None:
    program = (
        "import sys, dovetail.data.chat, dovetail.data.chat.examples\n"
        "print([name for name in ('jax', 'jinja2', 'tokenizers') if name in sys.modules])"
    )
    command = [sys.executable, "-c", program]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout == "[]\n"
