"""What an inspection finds: documents, losses and padding of rows, packing, shares and epochs."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dovetail.config import Component, ConfigError
from dovetail.data import (
    BestFit,
    ByteTokenizer,
    DataInspection,
    FillInTheMiddle,
    MixtureInput,
    MixtureSource,
    MixtureStage,
    PadEach,
    PrefixLM,
    TextFiles,
    TokenInput,
    inspect_data,
)

WORDS = {"web": "news of the day", "code": "def f(x): return x"}


def inspected(config: Any, **options: Any) -> DataInspection:
    return inspect_data(config.build(), **{"steps": 10, "progress": False} | options)


@pytest.fixture
def mixture(tmp_path: Path, cache_folder: Path) -> MixtureInput.Config:
    """Two sources, with a second stage."""
    for name, words in WORDS.items():
        (tmp_path / name).mkdir()
        for number in range(60):
            (tmp_path / name / f"{number}.txt").write_text(f"{words} {number} " * (1 + number % 7))
    sources = {
        name: MixtureSource.Config(corpus=TextFiles.Config(files=str(tmp_path / name)))
        for name in WORDS
    }
    sources["web"].weight = 3.0
    return MixtureInput.Config(
        sources=sources,
        tokenizer=ByteTokenizer.Config(),
        sequence_length=128,
        batch_size=4,
        packing=BestFit.Config(),
        block=16,
        stages={"later": MixtureStage.Config(start=6, weights={"code": 1.0})},
    )


def test_rows_have_the_text_of_their_tokens(small_input: TokenInput.Config) -> None:
    found, source = inspected(small_input, rows=None, step=2), small_input.build()
    batch = source.batch(2)
    assert len(found.rows) == 4
    for row, tokens in zip(found.rows, batch.tokens, strict=True):
        text = "".join(piece.text for piece in row.pieces).replace("<|endoftext|>", "")
        assert text == source.tokenizer.decode(tokens)
        assert sum(piece.length for piece in row.pieces) + row.padding == 16


def test_the_loss_of_a_row_is_that_of_its_weights(small_input: TokenInput.Config) -> None:
    small_input.transforms = (PrefixLM.Config(length=5),)
    small_input.packing = PadEach.Config()
    found, source = inspected(small_input, rows=None), small_input.build()
    weights = source.batch(0).loss_weights
    for row, weights_S in zip(found.rows, weights, strict=True):
        (piece,) = row.pieces
        assert piece.tokens_with_loss == np.count_nonzero(weights_S)
        masked = [span for span in piece.spans if not span.has_loss]
        ends = piece.offset + piece.length == piece.document_length
        assert len("".join(span.text for span in masked).encode()) >= min(5, piece.length - ends)
        assert piece.spans[0] == masked[0]


def test_padding_and_documents_of_rows(small_input: TokenInput.Config) -> None:
    small_input.packing, small_input.sequence_length = PadEach.Config(), 400
    found = inspected(small_input, rows=None)
    assert all(row.padding == 400 - row.pieces[0].length for row in found.rows)
    (source,) = found.sources
    assert source.packing.rows == source.documents
    assert source.lengths["min"] >= 2
    assert source.lengths["max"] <= source.tokens
    assert source.longer_than_a_row == 0
    assert source.rows_taken == 40
    assert source.epochs == 40 / source.documents
    assert 0.9 < source.bytes_per_token < 1


def test_shares_of_a_mixture(mixture: MixtureInput.Config) -> None:
    found = inspected(mixture)
    code, web = found.sources
    assert web.shares == {0: 0.75, 6: 0.0}
    assert (web.counted_share, code.counted_share) == (0.75, 0.25)
    assert found.counted_batches == 4
    source = mixture.build()
    names = Counter(name for step in range(10) for name in source.sources(step))
    assert {"web": web.rows_taken, "code": code.rows_taken} == names


def test_skipped_batches_are_not_counted(mixture: MixtureInput.Config) -> None:
    mixture.skips = ((2, 5), (8, 9))
    source = mixture.build()
    names = Counter(name for step in range(10) for name in source.sources(step))
    assert source.rows_taken(10) == names
    found = inspected(mixture, step=3)
    assert (found.step, found.batch) == (3, 6)
    assert "step 3, after 3 skipped batches" in found.documents_report()


@pytest.mark.parametrize("is_mixture", [True, False])
def test_the_held_out_split(
    mixture: MixtureInput.Config, small_input: TokenInput.Config, is_mixture: bool
) -> None:
    config: Any = mixture if is_mixture else small_input
    source = config.build()
    evaluation = source.held_out()
    found = inspected(config, split="held_out", step=evaluation.num_batches - 1, rows=None)
    batch = evaluation.batch(found.step)
    for row, tokens, segments in zip(found.rows, batch.tokens, batch.segment_ids, strict=True):
        assert row.padding == np.count_nonzero(segments == 0)
        text = "".join(piece.text for piece in row.pieces).replace("<|endoftext|>", "")
        assert text == source.tokenizer.decode(tokens)
    assert found.sources[0].rows_taken is None
    assert "epochs" not in found.report()
    with pytest.raises(ConfigError, match=r"step: the held_out split has \d+ batch.*got 99"):
        inspected(config, split="held_out", step=99)


def test_reports_have_markers(small_input: TokenInput.Config) -> None:
    small_input.packing, small_input.sequence_length = PadEach.Config(), 400
    report = inspected(small_input, rows=None).report()
    assert "257 tokens in the vocabulary" in report
    assert "bytes/token" in report
    assert "--- document" in report
    assert "⟦" in report
    assert "<|endoftext|>" in report
    assert "tokens of padding" in report


def test_documents_cannot_control_the_terminal(texts: Path, small_input: TokenInput.Config) -> None:
    for file in texts.rglob("*.txt"):
        file.write_text("red \x1b[31m text " * 3)
    report = inspected(small_input, rows=None).report()
    assert "\x1b" not in report
    assert r"\x1b" in report


def test_no_rows(mixture: MixtureInput.Config) -> None:
    found = inspected(mixture, rows=0)
    assert found.rows == ()
    assert found.report().endswith("75.0%")


def test_facts_are_json(mixture: MixtureInput.Config) -> None:
    facts = json.loads(json.dumps(inspected(mixture, rows=1).facts()))
    assert facts["sources"][0]["packing"]["fill_rate"] > 0.5
    assert facts["rows"][0]["pieces"][0]["spans"]


def test_special_tokens_have_names(small_input: TokenInput.Config) -> None:
    small_input.packing = PadEach.Config()
    small_input.tokenizer = WithSentinels.Config()
    small_input.transforms = (
        FillInTheMiddle.Config(prefix_id=257, suffix_id=258, middle_id=259, rate=1.0),
    )
    report = inspected(small_input, rows=None).report()
    assert "<|id 257|>" in report
    assert "<|endoftext|>" in report


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"step": -1}, "step: expected 0 or more, got -1"),
        ({"rows": -1}, "rows: expected 0 or more, got -1"),
        ({"split": "test"}, "split: expected train or held_out, got 'test'"),
    ],
)
def test_mistakes(small_input: TokenInput.Config, options: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        inspected(small_input, **options)


def test_other_inputs_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"input: NoRows has no documents in rows.*TokenInput"):
        inspect_data(NoRows.Config().build(), steps=1)


class NoRows(Component):
    """An input of something else."""


class WithSentinels(ByteTokenizer):
    """Bytes, and three ids that no text encodes to."""

    class Config(ByteTokenizer.Config):
        """As that of bytes."""

    @property
    def vocab_size(self) -> int:
        """The bytes, end of text, and the sentinels."""
        return 260

    @property
    def token_bytes(self) -> Any:
        """No bytes for the sentinels."""
        return np.array([1] * 256 + [0] * 4, np.int32)

    def decode_bytes(self, ids: Any) -> bytes:
        """Leaves out end of text and sentinels."""
        return bytes(index for index in ids if index < 256)
