"""The chat set of the package: the same in every run, in files, with a loss on each answer."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

from dovetail.data.chat import ChatEncoder, load_chat_template
from dovetail.data.chat.examples import (
    make_chat_tokenizer,
    make_conversations,
    write_conversations,
)


def test_the_set_is_deterministic_and_varied(tmp_path: Path) -> None:
    records = list(make_conversations())
    assert records == list(make_conversations())
    assert records[:10] == list(make_conversations(10))
    assert records != list(make_conversations(seed=1))
    assert len(records) == 300
    roles = [{message["role"] for message in record["messages"]} for record in records]
    assert 20 < sum("tool" in each for each in roles) < 150
    assert 100 < sum("system" in each for each in roles) < 200
    write_conversations(tmp_path / "chat.jsonl")
    lines = (tmp_path / "chat.jsonl").read_text().splitlines()
    assert [json.loads(line) for line in lines] == records


def test_every_answer_of_the_set_has_a_loss(tmp_path: Path) -> None:
    tokenizer = make_chat_tokenizer(tmp_path / "tokenizer")
    template = load_chat_template(tmp_path / "tokenizer")
    with_blocks = ChatEncoder(template, tokenizer)
    without = ChatEncoder(template.without_generation_blocks(), tokenizer)
    end = tokenizer.special_tokens["<|im_end|>"]
    for record in make_conversations():
        (one,) = with_blocks.encode(record)
        answers = sum(message["role"] == "assistant" for message in record["messages"])
        assert len(one.answers) == answers
        assert int(((one.ids == end) & (one.weights > 0)).sum()) == answers
        (same,) = without.encode(record)
        np.testing.assert_array_equal(one.weights, same.weights)


def test_the_tokenizer_is_the_same_in_every_run(tmp_path: Path) -> None:
    one, two = (make_chat_tokenizer(tmp_path / name) for name in "ab")
    assert one.fingerprint() == two.fingerprint()
    assert one.vocab_size == 512
