"""A mixture as an input: its batches, its data, its held-out splits, and what it refuses."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from dovetail.config import ConfigError, apply_overrides, from_text, to_text
from dovetail.data import (
    BestFit,
    BytePairTokenizer,
    ByteTokenizer,
    MixtureInput,
    MixtureSource,
    MixtureStage,
    TextFiles,
    prepare,
)
from dovetail.data.store import data_folder

WORDS = {"web": "news of the day", "code": "def f(x): return x", "books": "once upon a time"}
COUNTS = {"web": 200, "code": 80, "books": 20}


@pytest.fixture
def mixture(tmp_path: Path, cache_folder: Path) -> MixtureInput.Config:
    """Three sources, of which one begins to count in a later stage."""
    for name, words in WORDS.items():
        (tmp_path / name).mkdir()
        for number in range(COUNTS[name]):
            text = f"{words} {number} " * (1 + number % 7)
            (tmp_path / name / f"{number}.txt").write_text(text)
    sources = {
        name: MixtureSource.Config(corpus=TextFiles.Config(files=str(tmp_path / name)))
        for name in WORDS
    }
    sources["web"].weight = 5.0
    sources["books"].weight = 0.0
    return MixtureInput.Config(
        sources=sources,
        tokenizer=ByteTokenizer.Config(),
        sequence_length=128,
        batch_size=6,
        packing=BestFit.Config(),
        block=12,
        stages={"annealing": MixtureStage.Config(start=4, weights={"code": 1.0, "books": 2.0})},
    )


def equal(one: Any, other: Any) -> None:
    jax.tree.map(np.testing.assert_array_equal, one, other)


def texts(source: MixtureInput, step: int) -> list[str]:
    batch = source.batch(step)
    return [source.tokenizer.decode(row) for row in batch.tokens]


def test_rows_come_from_their_sources_in_exact_shares(mixture: MixtureInput.Config) -> None:
    source = mixture.build()
    for step in range(8):
        names = source.sources(step)
        for name, text in zip(names, texts(source, step), strict=True):
            assert WORDS[name] in text
            assert not any(words in text for other, words in WORDS.items() if other != name)
    first = Counter(name for step in (0, 1) for name in source.sources(step))
    assert first == {"web": 10, "code": 2}
    later = Counter(name for step in (4, 5) for name in source.sources(step))
    assert later == {"code": 4, "books": 8}


def test_any_rows_of_a_batch_alone_are_the_same(mixture: MixtureInput.Config) -> None:
    source = mixture.build()
    for step in range(8):
        whole = source.batch(step)
        for hosts in (1, 2, 3, 6):
            size = 6 // hosts
            parts = [
                mixture.build().batch(step, slice(host * size, (host + 1) * size))
                for host in range(hosts)
            ]
            equal(jax.tree.map(lambda *each: np.concatenate(each), *parts), whole)


def test_the_documents_of_a_row_are_those_of_its_text(mixture: MixtureInput.Config) -> None:
    source = mixture.build()
    names, rows = source.sources(5), source.documents(5)
    for name, pieces, tokens in zip(names, rows, source.batch(5).tokens, strict=True):
        split = source._rows.source(name)._splits["train"]
        for piece in pieces:
            start = split.starts[piece.document] + piece.offset
            expected = split.tokens[start : start + piece.length]
            np.testing.assert_array_equal(
                tokens[piece.position : piece.position + piece.length], expected
            )


def test_a_trained_tokenizer_has_seen_all_sources(mixture: MixtureInput.Config) -> None:
    mixture.tokenizer = BytePairTokenizer.Config(vocab_size=400)
    source = mixture.build()
    prepared = source.prepare(progress=False)
    assert set(prepared.parts) == set(WORDS)
    for words in ("news", "return", "upon"):
        assert len(source.tokenizer.encode(words)) < len(words), words
    again = mixture.build().prepare(progress=False)
    assert again.reused
    assert again.folder == prepared.folder
    del mixture.sources["books"]
    mixture.stages = {}
    other = mixture.build().prepare(progress=False)
    assert not {part.folder for part in other.parts.values()} & {
        part.folder for part in prepared.parts.values()
    }, "another tokenizer gives other tokens"


def test_sources_of_a_fixed_tokenizer_are_shared(mixture: MixtureInput.Config) -> None:
    first = prepare(mixture, progress=False)
    del mixture.sources["books"]
    mixture.stages = {}
    second = prepare(mixture, progress=False)
    assert second.reused
    assert second.parts["web"].folder == first.parts["web"].folder
    assert "code train" in first.text()
    assert "\nheld_out" in second.text(), "and the sum of all"


def test_a_ramp_changes_the_weights_in_steps(mixture: MixtureInput.Config) -> None:
    mixture.block = 120
    mixture.stages = {"later": MixtureStage.Config(start=20, ramp=40, weights={"books": 1.0})}
    source = mixture.build()

    def share(first: int, last: int) -> float:
        names = Counter(name for step in range(first, last) for name in source.sources(step))
        return names["books"] / names.total()

    mixture.block = 12  # the first steps of the ramp are less than a row of it
    small = mixture.build()
    assert {name for step in range(60, 70) for name in small.sources(step)} == {"books"}
    assert share(0, 20) == 0
    assert 0.3 < share(30, 50) < 0.7
    assert share(60, 80) == 1


def test_each_source_has_a_held_out_split(mixture: MixtureInput.Config) -> None:
    source = mixture.build()
    parts = source.held_out_by_source(1)
    assert set(parts) == set(WORDS)
    together = source.held_out(1)
    assert together.num_batches == 3
    for index, part in enumerate(parts.values()):
        equal(together.batch(index), part.batch(0))
    with pytest.raises(IndexError, match="batch 3 is beyond"):
        together.batch(3)


def test_a_config_reads_back_and_takes_overrides(mixture: MixtureInput.Config) -> None:
    assert from_text(to_text(mixture)) == mixture
    changed = apply_overrides(mixture, ["sources.web.weight=2", "stages.annealing.start=9"])
    assert changed.sources["web"].weight == 2.0
    assert changed.stages["annealing"].start == 9


def test_the_kept_data_serves_without_the_corpora(
    mixture: MixtureInput.Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from dovetail.data import keep_data

    source = mixture.build()
    expected = source.batch(5)
    for limit, name in ((10**9, "whole"), (0, "names")):
        keep_data(source.prepare(), tmp_path / name, limit)
        for path in (tmp_path / "web").glob("*.txt"):
            path.unlink()
        opened = mixture.build()
        opened.use_prepared(tmp_path / name)
        equal(opened.batch(5), expected)
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / f"moved-{name}"))
        moved = mixture.build()
        if name == "names":
            with pytest.raises(ConfigError, match="cannot be read"):
                moved.use_prepared(tmp_path / name)
        else:
            moved.use_prepared(tmp_path / name)
            equal(moved.batch(5), expected)
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    assert data_folder() == tmp_path / "cache" / "dovetail" / "data"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"sources": {}}, "a mixture has at least one source"),
        ({"block": 0}, "block: expected 1 or more, got 0"),
        ({"temperature": 0.0}, "temperature: expected more than 0"),
        ({"sources.web.weight": -1.0}, "weight of web: expected 0 or more, got -1"),
        ({"block": 2}, r"weight of code: 0\.167 of 2 rows is less than one row"),
        (
            {"stages.annealing.weights": {"cod": 1.0}},
            "no source 'cod'. The sources are books",
        ),
        ({"stages.annealing.weights": {"code": 0.0}}, "weights of books, code, web are all 0"),
        ({"stages.annealing.start": 0}, "start: expected 1 or more, got 0"),
        (
            {"stages.more": MixtureStage.Config(start=4, weights={"web": 1.0})},
            "the stage before is in force until batch 4",
        ),
    ],
)
def test_mistakes_are_errors_before_any_data_is_read(
    mixture: MixtureInput.Config, change: dict[str, Any], message: str
) -> None:
    for path, value in change.items():
        holder, _, name = path.rpartition(".")
        owner: Any = mixture
        for piece in holder.split(".") if holder else ():
            owner = owner[piece] if isinstance(owner, dict) else getattr(owner, piece)
        if isinstance(owner, dict):
            owner[name] = value
        else:
            setattr(owner, name, value)
    with pytest.raises(ConfigError, match=message):
        mixture.build()
    assert not data_folder().exists()


def test_too_many_epochs_are_refused_before_training(mixture: MixtureInput.Config) -> None:
    mixture.sources["books"].epochs = 1.0
    source = mixture.build()
    assert source.warnings(5) == []
    with pytest.raises(ConfigError, match=r"source books: 40 batches take \d+ rows of its"):
        source.warnings(40)
    mixture.sources["books"].epochs = None
    [warning] = [w for w in mixture.build().warnings(400) if "books" in w]
    assert "repeat it" in warning
