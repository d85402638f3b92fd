"""Training on conversations: `--with chat`, mixtures with text, a model that learns to answer."""

from __future__ import annotations

import math
import shutil
from pathlib import Path
from typing import Any

import pytest

import dovetail
from dovetail.config import ConfigError, apply_modifier
from dovetail.data import (
    BestFit,
    ChatFiles,
    MixtureInput,
    MixtureSource,
    PrefixLM,
    TextFiles,
    TokenInput,
)
from dovetail.data.chat.examples import make_chat_tokenizer, make_conversations, write_conversations
from dovetail.experiments import find_experiment
from dovetail.trainer import HeldOutLoss

SMALL = (
    "model.width=32",
    "model.decoder.stack.num_layers=1",
    "model.decoder.stack.layer.feed_forward.hidden=32",
)


@pytest.fixture(scope="module")
def work(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with conversations, their tokenizer and its template."""
    folder = tmp_path_factory.mktemp("chat")
    make_chat_tokenizer(folder / "tokenizer")
    write_conversations(folder / "chat.jsonl", count=60)
    return folder


def chat_experiment(work: Path, *changes: str) -> Any:
    tokenizer: Any = make_chat_tokenizer(work / "tokenizer").config
    return (
        dovetail.experiment("tiny-lm")
        .with_features(f"chat:files={work / 'chat.jsonl'}")
        .override(
            "input.tokenizer=PretrainedTokenizer",
            f"input.tokenizer.folder={work / 'tokenizer'}",
            f"input.tokenizer.vocab_size={tokenizer.vocab_size}",
            f"input.tokenizer.end_of_text={tokenizer.end_of_text}",
            *changes,
        )
    )


def losses(run: Any) -> list[float]:
    return [entry["loss"] for entry in run.metrics() if "loss" in entry]


def test_the_input_changes_and_nothing_else() -> None:
    base: Any = find_experiment("tiny-lm").tiny()
    config: Any = apply_modifier(base, "chat:files=chat.jsonl,max_bad=0.1")
    assert isinstance(config.input, TokenInput.Config)
    assert config.input.corpus == ChatFiles.Config(files="chat.jsonl", max_bad=0.1)
    assert isinstance(config.input.packing, BestFit.Config)
    assert config.input.tokenizer == base.input.tokenizer
    assert config.input.sequence_length == base.input.sequence_length
    assert list(config.evaluators) == ["held_out"], "the others are about the text before"
    assert config.clone(input=base.input, evaluators=base.evaluators) == base


def test_a_tokenizer_without_a_template_is_refused(work: Path) -> None:
    experiment = dovetail.experiment("tiny-lm").with_features(f"chat:files={work / 'chat.jsonl'}")
    with pytest.raises(ConfigError, match=r"expected a chat template, because BytePairTokenizer"):
        experiment.train(steps=1, folder=work / "never", progress=False)


@pytest.mark.slow
def test_a_run_is_tuned_and_continues_without_its_files(work: Path, tmp_path: Path) -> None:
    """The second half of a run has the batches that it would have had at once."""
    base = chat_experiment(work, *SMALL).train(steps=2, folder=tmp_path / "base", progress=False)
    moved = shutil.copytree(work, tmp_path / "moved")
    (moved / "chat.jsonl").rename(tmp_path / "chat.jsonl")
    tuned = (
        dovetail.experiment("tiny-lm")
        .with_features(f"from-run:path={base.path}", f"chat:files={tmp_path / 'chat.jsonl'}")
        .override("learner.schedule=ConstantSchedule", "learner.schedule.peak=0.01")
    )
    whole = tuned.train(steps=4, folder=tmp_path / "whole", progress=False)
    tuned.train(steps=2, folder=tmp_path / "half", progress=False)
    (tmp_path / "chat.jsonl").unlink()
    shutil.rmtree(moved)
    continued = dovetail.experiment(tmp_path / "half").train(steps=4, progress=False)
    assert losses(continued) == losses(whole)
    assert len(losses(whole)) == 4


def test_a_mixture_of_conversations_and_text_trains(work: Path, tmp_path: Path) -> None:
    for number in range(20):
        (tmp_path / f"{number}.txt").write_text(f"The year {number} was a year. " * 9)
    config: Any = chat_experiment(work, *SMALL).config
    config.input = MixtureInput.Config(
        sources={
            "chat": MixtureSource.Config(corpus=config.input.corpus, weight=3.0),
            "text": MixtureSource.Config(corpus=TextFiles.Config(files=str(tmp_path))),
        },
        packing=config.input.packing,
        tokenizer=config.input.tokenizer,
        sequence_length=256,
        batch_size=8,
        block=8,
    )
    source = config.input.build()
    batch, names = source.batch(0), source.sources(0)
    assert sorted(names) == [*["chat"] * 6, *["text"] * 2]
    for name, weights, segments in zip(names, batch.loss_weights, batch.segment_ids, strict=True):
        share = weights.sum() / (segments > 0).sum()
        assert (share > 0.9) == (name == "text")
    assert all(weights.any() for weights in batch.loss_weights)
    config.evaluators = {"held_out": HeldOutLoss.Config()}
    config.steps = 2
    outcome = config.build().train(tmp_path / "run")
    assert {"held_out/loss", "held_out/chat/loss", "held_out/text/loss"} <= set(outcome.metrics)
    assert math.isfinite(outcome.metrics["loss"])


def test_batches_without_a_counted_target_are_harmless(work: Path, tmp_path: Path) -> None:
    config: Any = chat_experiment(work, *SMALL, "steps=2", "evaluators={}").config
    config.input.transforms = (PrefixLM.Config(length=10**6),)
    assert not config.input.build().batch(0).loss_weights.any()
    assert config.build().train(tmp_path / "run").metrics["loss"] == 0


@pytest.mark.slow
def test_a_tiny_model_learns_to_answer(work: Path, tmp_path: Path) -> None:
    write_conversations(tmp_path / "chat.jsonl", count=300)
    experiment = chat_experiment(
        work,
        f"input.corpus.files={tmp_path / 'chat.jsonl'}",
        "model.decoder.stack.num_layers=2",
        "input.sequence_length=128",
        "evaluators.held_out.every=10",
    )
    run = experiment.train(steps=120, folder=tmp_path / "run", progress=False)
    held_out = [entry["held_out/loss"] for entry in run.metrics() if "held_out/loss" in entry]
    assert held_out[-1] < 0.5 * held_out[0]
    asked = {
        record["messages"][-2]["content"]: record["messages"][-1]["content"]
        for record in make_conversations(300)
        if len(record["messages"]) == 2 and "opposite" in record["messages"][0]["content"]
    }
    right = 0
    for question, answer in asked.items():
        prompt = f"<|im_start|>user\n{question}<|im_end|>\n<|im_start|>assistant\n"
        right += run.generate(prompt, max_new_tokens=32, temperature=0.0).text == answer
    assert right >= len(asked) - 1 > 3
