"""Adding and dropping sources in the middle of a run: recorded, and only from then on."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dovetail.config import ConfigError
from dovetail.data import (
    BytePairTokenizer,
    MixtureInput,
    MixtureSource,
    MixtureStage,
    TextFiles,
)
from dovetail.models.llama import llama
from dovetail.run import Run
from dovetail.run.training import prepare_run
from dovetail.runtime import Checkpointer
from dovetail.trainer import HeldOutLoss, Trainer
from dovetail.utils import Progress


def source(folder: Path, weight: float) -> MixtureSource.Config:
    if not folder.is_dir():
        folder.mkdir(parents=True)
        for number in range(40):
            (folder / f"{number}.txt").write_text(f"{folder.name} says {number} again. " * 6)
    return MixtureSource.Config(corpus=TextFiles.Config(files=str(folder)), weight=weight)


@pytest.fixture
def config(tmp_path: Path, cache_folder: Path) -> Trainer.Config:
    sources = {name: source(tmp_path / name, 1.0) for name in ("web", "code")}
    data = MixtureInput.Config(
        sources=sources,
        tokenizer=BytePairTokenizer.Config(vocab_size=300),
        sequence_length=32,
        batch_size=8,
        block=8,
    )
    return Trainer.Config(
        model=llama(width=16, num_layers=1, num_heads=2, hidden=32),
        input=data,
        evaluators={"held_out": HeldOutLoss.Config(num_batches=1)},
        checkpointer=Checkpointer.Config(every=2),
        steps=4,
    )


def train(config: Trainer.Config, folder: Path) -> Any:
    prepared = prepare_run(config, folder, Progress(enabled=False))
    prepared.train({"experiment": "mixed"})
    return Run(folder)


def changed(config: Trainer.Config, folder: Path, start: int = 4) -> Trainer.Config:
    """Adds a source that begins at a step, and drops another one there."""
    config.input.sources["books"] = source(folder / "books", 0.0)
    config.input.stages = {
        "next": MixtureStage.Config(start=start, weights={"web": 1.0, "books": 1.0})
    }
    return config.set(steps=8)


def test_a_run_goes_on_with_other_sources(config: Trainer.Config, tmp_path: Path) -> None:
    run = train(config, tmp_path / "run")
    tokenizer = (tmp_path / "run" / "tokenizer" / "tokenizer.json").read_bytes()
    before = [run.trainer.input.batch(step).tokens for step in range(4)]
    assert {f"held_out/{name}/loss" for name in ("web", "code")} <= run.metrics()[-1].keys()

    run = train(changed(config, tmp_path), tmp_path / "run")
    assert run.step == 8
    data = run.trainer.input
    for step, tokens in enumerate(before):
        np.testing.assert_array_equal(data.batch(step).tokens, tokens)
    assert {name for step in range(4, 8) for name in data.sources(step)} == {"web", "books"}
    assert (tmp_path / "run" / "tokenizer" / "tokenizer.json").read_bytes() == tokenizer
    about = json.loads((tmp_path / "run" / "run.json").read_text())
    [change] = about["data_changes"]
    assert change["step"] == 4
    assert any("books" in line for line in change["changes"])
    assert "held_out/books/loss" in run.metrics()[-1]

    again = train(config.set(steps=10), tmp_path / "run")  # no change any more
    assert again.step == 10
    assert len(json.loads((tmp_path / "run" / "run.json").read_text())["data_changes"]) == 1


def too_early(config: Trainer.Config, folder: Path) -> Trainer.Config:
    return changed(config, folder, start=3)


def other_corpus(config: Trainer.Config, folder: Path) -> Trainer.Config:
    config.input.sources["web"].corpus = source(folder / "other", 1.0).corpus
    return config


def other_weight(config: Trainer.Config, _: Path) -> Trainer.Config:
    config.input.sources["web"].weight = 2.0
    return config


def other_length(config: Trainer.Config, _: Path) -> Trainer.Config:
    config.input.sequence_length = 64
    return config


def other_model(config: Trainer.Config, folder: Path) -> Trainer.Config:
    config.model = llama(width=32, num_layers=1, num_heads=2, hidden=32)
    return changed(config, folder)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (too_early, r"has taken 4 batches, and the new weights would change them \(no stage there"),
        (other_corpus, r"sources\.web\.corpus: the run has trained on this source"),
        (other_weight, r"code=1 web=1 from batch 0 there, code=1 web=2 from batch 0 here"),
        (other_length, r"input\.sequence_length: it cannot change in the middle of a run \(32"),
        (other_model, "is a run of another identity"),
    ],
)
def test_what_would_change_earlier_batches_is_refused(
    config: Trainer.Config, tmp_path: Path, change: Any, message: str
) -> None:
    train(config, tmp_path / "run")
    before = (tmp_path / "run" / "identity.txt").read_text()
    with pytest.raises(ConfigError, match=message):
        train(change(config, tmp_path).set(steps=8), tmp_path / "run")
    assert (tmp_path / "run" / "identity.txt").read_text() == before
