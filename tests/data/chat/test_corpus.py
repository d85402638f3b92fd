"""Conversations as a corpus: the batches, the token store, bad records, and templates."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dovetail.config import ConfigError, from_text, to_text
from dovetail.data import (
    BestFit,
    BytePairTokenizer,
    ByteTokenizer,
    ChatFiles,
    ConcatenateAndSplit,
    FillInTheMiddle,
    PadEach,
    PrefixLM,
    TokenInput,
    prepare,
)
from dovetail.data.chat import ChatEncoder, load_chat_template
from dovetail.data.chat.examples import CHAT_TEMPLATE, make_conversations
from dovetail.data.preparation import pieces, work
from dovetail.data.store import DamagedDataError, TokenStore, data_folder


def naive(config: TokenInput.Config) -> dict[bytes, list[int]]:
    """Returns the weights of each conversation by the bytes of its ids, encoded one by one."""
    tokenizer: Any = config.tokenizer.build()
    encoder = ChatEncoder(load_chat_template(tokenizer.folder), tokenizer)
    found = {}
    for record in make_conversations(40):
        (example,) = encoder.encode(record)  # type: ignore[misc]  # none is bad
        ids = [*example.ids.tolist(), tokenizer.end_of_text]
        found[str(ids).encode()] = [*example.weights.astype(int).tolist(), 0]
    return found


def answers_in(batch: Any, tokenizer: Any) -> list[str]:
    """Returns the text of each range of targets that count."""
    found = []
    for targets, weights in zip(batch.targets, batch.loss_weights, strict=True):
        edges = np.flatnonzero(np.diff(np.concatenate([[0], weights, [0]])))
        for start, end in edges.reshape(-1, 2):
            ids = [int(each) for each in targets[start:end]]
            found.append(tokenizer._ready().decode(ids, skip_special_tokens=False))
    return found


# Batches.


@pytest.mark.parametrize(
    "packing", [BestFit.Config(), PadEach.Config(), ConcatenateAndSplit.Config()]
)
def test_every_document_has_the_weights_of_its_own_encoding(
    chat_input: TokenInput.Config, packing: Any
) -> None:
    """Compared for all documents of both splits, from the tokens of batches alone."""
    source = chat_input.set(packing=packing, sequence_length=1024).build()
    expected, counted = naive(chat_input), 0
    store = TokenStore(source.prepare().folder)
    for split in ("train", "held_out"):
        data = store.split(split)
        ends = np.append(data.starts[1:], len(data.tokens))
        weights = np.zeros(len(data.tokens), int)
        own_split = chat_input.clone(split=split, batch_size=1).build()
        for step in range(own_split.packing_statistics(split).rows):
            batch = own_split.batch(step)
            for row, documents in enumerate(own_split.documents(step)):
                for piece in documents:
                    begin = int(data.starts[piece.document]) + piece.offset
                    cells = slice(piece.position, piece.position + piece.length)
                    own = batch.loss_weights[row, cells].astype(int)
                    last = begin + piece.length >= ends[piece.document]
                    targets = slice(begin + 1, begin + 1 + piece.length - last)
                    weights[targets] = own[: piece.length - last]
                    assert not last or own[-1] == 0, "an end of text predicts nothing"
        for start, end in zip(data.starts, ends, strict=True):
            key = str(data.tokens[start:end].tolist()).encode()
            assert weights[start:end].tolist() == expected[key]
            counted += 1
    assert counted == 40


def test_exactly_the_answers_count(chat_input: TokenInput.Config) -> None:
    source = chat_input.set(sequence_length=512).build()
    said = {
        message["content"]
        for record in make_conversations(40)
        for message in record["messages"]
        if message["role"] == "assistant" and message["content"]
    }
    found = [
        answer for step in range(2) for answer in answers_in(source.batch(step), source.tokenizer)
    ]
    assert len(found) > 20
    for answer in found:
        assert answer.endswith("<|im_end|>")
        text = answer.removesuffix("<|im_end|>")
        assert text in said or text.startswith('<tool_call>{"name": "multiply"')


def test_any_rows_of_a_batch_alone_are_the_same(chat_input: TokenInput.Config) -> None:
    source = chat_input.build()
    whole = source.batch(5)
    for row in range(4):
        alone = source.batch(5, slice(row, row + 1))
        np.testing.assert_array_equal(alone.loss_weights, whole.loss_weights[row : row + 1])
        np.testing.assert_array_equal(alone.tokens, whole.tokens[row : row + 1])


def test_transforms_come_after_the_weights(chat_input: TokenInput.Config) -> None:
    plain = chat_input.build().batch(0)
    chat_input.set(transforms=(PrefixLM.Config(length=50),))
    prefixed = chat_input.build().batch(0)
    outside = plain.positions + 1 >= 50
    np.testing.assert_array_equal(prefixed.loss_weights, plain.loss_weights * outside)
    middle = FillInTheMiddle.Config(prefix_id=1, suffix_id=2, middle_id=3, rate=1.0)
    untouched = chat_input.set(transforms=(middle,)).build().batch(0)
    np.testing.assert_array_equal(untouched.tokens, plain.tokens)
    np.testing.assert_array_equal(untouched.loss_weights, plain.loss_weights)


def test_the_held_out_split_counts_answers_alone(chat_input: TokenInput.Config) -> None:
    source = chat_input.build()
    batch = source.held_out().batch(0)
    assert all(text.endswith("<|im_end|>") for text in answers_in(batch, source.tokenizer))
    assert 0 < batch.loss_weights.sum() < (batch.segment_ids > 0).sum() / 2
    assert (batch.extras["target_bytes"][batch.loss_weights == 0] == 0).all()


# The token store.


def test_pieces_and_processes_change_nothing(
    chat_input: TokenInput.Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = prepare(chat_input, progress=False).folder
    whole = {path.name: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    assert "train.weights" in whole
    assert len(whole["train.weights"]) * 2 == len(whole["train.tokens"])
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "workers"))
    monkeypatch.setattr(pieces, "_PIECE_BYTES", 1)
    monkeypatch.setattr(work, "_MIN_BYTES_FOR_WORKERS", {"survey": 0, "tokens": 0})
    chat_input.corpus.set(shard_bytes=4000)
    again = prepare(chat_input, progress=False).folder
    assert {path.name: path.read_bytes() for path in again.rglob("*") if path.is_file()} == whole


def test_damaged_weights_are_found(
    chat_input: TokenInput.Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dovetail.data.store._VERIFIED_AT_ONCE", 0)
    source = chat_input.build()
    source.batch(0)
    file = source.prepare().folder / "train.weights"
    data = bytearray(file.read_bytes())
    data[7] ^= 1
    file.write_bytes(data)
    with pytest.raises(DamagedDataError, match=r"train\.weights does not match its checksum"):
        chat_input.build().batch(0)


def test_a_run_continues_without_its_corpus(
    chat_input: TokenInput.Config, chat_file: Path, tmp_path: Path
) -> None:
    source = chat_input.build()
    kept = tmp_path / "run" / "data"
    kept.parent.mkdir()
    source.prepare().folder.rename(kept)
    chat_file.unlink()
    resumed = from_text(to_text(chat_input)).build()
    resumed.use_prepared(kept)
    np.testing.assert_array_equal(resumed.batch(3).loss_weights, source.batch(3).loss_weights)


def test_a_text_corpus_has_no_weights(small_input: TokenInput.Config) -> None:
    store = TokenStore(prepare(small_input, progress=False).folder)
    assert store.split("train").weights is None
    assert not any("weights" in name for name in store.meta.files)


def test_columns_of_a_table(chat_input: TokenInput.Config, tmp_path: Path) -> None:
    arrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    records = list(make_conversations(40))
    rows = [
        {
            "id": n,
            "messages": [
                {"role": m["role"], "content": m.get("content")} for m in record["messages"]
            ],
        }
        for n, record in enumerate(records)
        if "tools" not in record
    ]
    parquet.write_table(arrow.Table.from_pylist(rows), tmp_path / "chat.parquet")
    chat_input.corpus.set(files=str(tmp_path / "chat.parquet"))
    assert prepare(chat_input, progress=False).documents == len(rows)


# Records and templates that do not fit.


def with_bad(chat_file: Path, *lines: str) -> None:
    with chat_file.open("a") as stream:
        stream.writelines(f"{line}\n" for line in lines)


TWO_USERS = json.dumps(
    {
        "messages": [
            {"role": "user", "content": "A?"},
            {"role": "user", "content": "B?"},
            {"role": "assistant", "content": "C."},
        ]
    }
)
STRICT = (
    "{%- for message in messages %}{% if loop.index0 and message.role == 'user' and "
    "messages[loop.index0 - 1].role == 'user' %}{{ raise_exception('two questions') }}{% endif %}"
    "{% endfor %}" + CHAT_TEMPLATE
)


def test_a_record_without_a_conversation_is_named_by_its_line(
    chat_input: TokenInput.Config, chat_file: Path
) -> None:
    with_bad(chat_file, '{"text": "once"}')
    message = rf"(?s)1 of 41 records is bad.*{chat_file}:41: its keys are \['text'\]; expected mess"
    with pytest.raises(ConfigError, match=message):
        prepare(chat_input, progress=False)


def test_a_conversation_that_the_template_refuses_is_named_by_its_line(
    chat_input: TokenInput.Config, chat_file: Path, tmp_path: Path
) -> None:
    (tmp_path / "strict.jinja").write_text(STRICT)
    chat_input.corpus.set(template=str(tmp_path / "strict.jinja"))
    with_bad(chat_file, TWO_USERS, "{}")
    message = rf"(?s)and max_bad=0\.03 allows 1\..*{chat_file}:42: .*{chat_file}:41: .*two quest"
    chat_input.corpus.set(max_bad=0.03)
    with pytest.raises(ConfigError, match=message):
        prepare(chat_input, progress=False)
    chat_input.corpus.set(max_bad=0.05)
    prepared = prepare(chat_input, progress=False)
    assert prepared.documents == 40
    assert prepared.report["bad_records"] == 2
    assert sum(prepared.report["problems"].values()) == 2


def test_a_bad_template_is_refused_before_documents_are_read(
    chat_input: TokenInput.Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "bad.jinja").write_text("{% for m in messages %}{{ m.content }}{% endfor %}")
    chat_input.corpus.set(template=str(tmp_path / "bad.jinja"))
    monkeypatch.setattr(ChatFiles, "read", None)
    with pytest.raises(ConfigError, match="chat template"):
        prepare(chat_input, progress=False)
    assert not list(data_folder().glob("*.unfinished"))


def test_the_template_decides_the_folder_of_the_store(
    chat_input: TokenInput.Config, tmp_path: Path
) -> None:
    before = prepare(chat_input, progress=False)
    path = tmp_path / "other.jinja"
    path.write_text(CHAT_TEMPLATE)
    chat_input.corpus.set(template=str(path))
    assert prepare(chat_input, progress=False).folder == before.folder, "it is the same text"
    path.write_text(CHAT_TEMPLATE.replace("<tool_call>", "<call>"))
    assert prepare(chat_input, progress=False).folder != before.folder
    path.write_text("{{ strftime_now('%Y') }}" + CHAT_TEMPLATE)
    with pytest.raises(ConfigError, match="today's date"):
        prepare(chat_input, progress=False)
    chat_input.corpus.set(date="2026-01-31")
    assert prepare(chat_input, progress=False).documents == 40


def test_generation_blocks_in_the_wrong_place_can_be_ignored(
    chat_input: TokenInput.Config, tmp_path: Path
) -> None:
    path = tmp_path / "late.jinja"
    path.write_text(
        CHAT_TEMPLATE.replace(
            "{{- '<|im_end|>' }}\n{%- endgeneration %}", "{%- endgeneration %}\n{{- '<|im_end|>' }}"
        )
    )
    before = chat_input.build().batch(0)
    chat_input.corpus.set(template=str(path))
    with pytest.raises(ConfigError, match=r"misses the end-of-turn token"):
        prepare(chat_input, progress=False)
    chat_input.corpus.set(generation_blocks=False)
    np.testing.assert_array_equal(chat_input.build().batch(0).loss_weights, before.loss_weights)


@pytest.mark.parametrize("kind", [ByteTokenizer, BytePairTokenizer])
def test_tokenizers_without_special_tokens_take_a_template_by_its_file(
    chat_input: TokenInput.Config, tmp_path: Path, kind: Any
) -> None:
    tokenizer = kind.Config() if kind is ByteTokenizer else kind.Config(vocab_size=400)
    chat_input.set(tokenizer=tokenizer, sequence_length=2048)
    with pytest.raises(ConfigError, match="template: expected a chat template, because Byte"):
        prepare(chat_input, progress=False)
    (tmp_path / "tokenizer_config.json").write_text('{"eos_token": "<|im_end|>"}')
    (tmp_path / "chat_template.jinja").write_text(CHAT_TEMPLATE)
    chat_input.corpus.set(template=str(tmp_path))
    source = chat_input.build()
    batch = source.batch(0)
    counted = batch.targets[batch.loss_weights > 0]
    assert source.tokenizer.decode(counted).endswith("<|im_end|>")


def test_files_without_records_are_refused(chat_input: TokenInput.Config, tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("once upon a time")
    chat_input.corpus.set(files=str(tmp_path / "notes.txt"))
    with pytest.raises(ConfigError, match=r"notes\.txt is text, which has no conversations"):
        prepare(chat_input, progress=False)
    with pytest.raises(ConfigError, match="a conversation has no text column"):
        ChatFiles.Config(files="chat.jsonl", text="messages").build()
    with pytest.raises(ConfigError, match="expected a date such as"):
        ChatFiles.Config(files="chat.jsonl", date="today").build()
