"""Trials: with which arguments features are tried on tiny forms, and on which."""

from __future__ import annotations

from typing import Any

import pytest

from dovetail.config import select
from dovetail.kernels.attention import SlidingWindow
from dovetail.layers import BaseAttention
from dovetail.learner.schedules import SCHEDULES
from dovetail.modularity import pairs


@pytest.fixture
def written(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Collects the trainers whose models would have written tokens."""
    found: list[Any] = []
    monkeypatch.setattr(pairs, "_generate", lambda trainer, *_: found.append(trainer))
    return found


@pytest.fixture
def tried(monkeypatch: pytest.MonkeyPatch, written: list[Any]) -> list[Any]:
    """Collects the trainers that would have been run."""
    found: list[Any] = []

    def train(trainer: Any) -> Any:
        found.append(trainer)
        return {}, {}

    monkeypatch.setattr(pairs, "_train", train)
    return found


def schedules(tried: list[Any]) -> list[str]:
    return [type(trainer.learner.config.schedule).__qualname__ for trainer in tried]


def test_all_trials_run_on_the_plain_form_and_the_first_on_others(tried: list[Any]) -> None:
    assert pairs.execute_pair("tiny-lm", "schedule").outcome == "works"
    assert len(tried) == len(SCHEDULES)
    assert len(set(schedules(tried))) == len(SCHEDULES) - 1  # "linear" has no own part
    tried.clear()
    assert pairs.execute_pair("gpt2", "schedule").outcome == "works"
    assert schedules(tried) == ["WarmupStableDecaySchedule.Config"]


def test_the_arguments_reach_the_model(tried: list[Any]) -> None:
    pairs.execute_pair("gpt2", "sliding-window")
    (trainer,) = tried
    masks = [found.mask.build() for found in select(trainer.model.config, BaseAttention)]
    assert masks == [SlidingWindow(4)]


def test_a_model_writes_once_however_it_is_trained(tried: list[Any], written: list[Any]) -> None:
    pairs.execute_pair("tiny-lm", "schedule")
    assert (len(tried), len(written)) == (len(SCHEDULES), 1)
    pairs.execute_pair("tiny-lm", "mamba2")
    assert len(written) == 3, "two trials that are two models"


@pytest.mark.usefixtures("written")
def test_what_fails_says_with_which_arguments(monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(trainer: Any) -> Any:
        if schedules([trainer]) == ["CosineSchedule.Config"]:
            raise FloatingPointError("no number")

        return {}, {}

    monkeypatch.setattr(pairs, "_train", failing)
    found = pairs.execute_pair("tiny-lm", "schedule")
    assert (found.outcome, found.detail) == ("fails", "name=cosine: FloatingPointError: no number")
