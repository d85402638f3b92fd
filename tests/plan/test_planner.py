"""The planner passes one built experiment on, instead of a config that each step builds again."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from dovetail.config import ConfigError, apply_modifier, to_text
from dovetail.experiments import find_experiment
from dovetail.plan import Candidate, Planner, ProgramCache, configured_candidate
from dovetail.plan.candidates import SAVES
from dovetail.targets import apply_target, parse_target
from dovetail.trainer import Trainer


@pytest.fixture
def built(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The configs that trainers are built from, in order."""
    configs: list[Any] = []
    build = Trainer.__init__

    def counted(self: Trainer, config: Trainer.Config) -> None:
        configs.append(config)
        build(self, config)

    monkeypatch.setattr(Trainer, "__init__", counted)
    return configs


def test_a_compiled_plan_builds_the_trainer_once(built: list[Any], tmp_path: Path) -> None:
    config = find_experiment("llama2-7b").tiny()
    planner = Planner("tiny", config, parse_target("cpu-8"), ProgramCache(tmp_path))
    planner.check()
    assert planner.analytic_plan().source == "analytic"
    assert planner.compiled_plan().source == "compiled"
    assert len(built) == 1


def test_an_analytic_plan_builds_the_rules_experiment_and_its_own(
    built: list[Any], tmp_path: Path
) -> None:
    fitted = apply_target(find_experiment("llama2-7b").config(), "tpu-v5p-512")
    assert len(built) == 1, "the rule decides by the size of the experiment before its changes"
    planner = Planner(
        "llama2-7b", fitted.config, fitted.machine, ProgramCache(tmp_path), is_analytic=True
    )
    planner.check()
    planner.best_plan()
    assert len(built) == 2


def test_a_candidate_is_built_once(built: list[Any], tmp_path: Path) -> None:
    config = find_experiment("llama2-7b").tiny()
    planner = Planner("tiny", config, parse_target("cpu-8"), ProgramCache(tmp_path))
    now = configured_candidate(config, planner.machine)
    planner.compiled_plan(replace(now, save="nothing", offloads_optimizer=True))
    assert len(built) == 1


@pytest.mark.parametrize("save", SAVES)
def test_a_candidate_sets_what_its_modifiers_set(save: str) -> None:
    config = find_experiment("llama2-7b").tiny()
    now = configured_candidate(config, parse_target("cpu-8"))
    candidate = Candidate(now.mesh, save, 4, True)
    typed = config.clone()
    for text in candidate.modifiers():
        typed = apply_modifier(typed, text)
    applied = candidate.apply(config)
    assert to_text(applied.set(mesh=typed.mesh)) == to_text(typed)
    assert to_text(config) == to_text(find_experiment("llama2-7b").tiny()), "it is not modified"


def test_an_unknown_policy_is_an_error() -> None:
    config = find_experiment("llama2-7b").tiny()
    now = configured_candidate(config, parse_target("cpu-8"))
    with pytest.raises(ConfigError, match=r"no remat policy 'nothin'.*nothing"):
        replace(now, save="nothin").apply(config)
