"""The planner passes one built experiment on, instead of a config that each step builds again."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from dovetail.config import ConfigError, ConfigOf, apply_modifier, to_text
from dovetail.experiments import find_experiment
from dovetail.learner import Accumulate, OneForwardOneBackward
from dovetail.parallel import OffloadNamed, Remat, SaveNothing
from dovetail.plan import (
    REMAT_POLICIES,
    Candidate,
    Planner,
    ProgramCache,
    candidates,
    configured_candidate,
)
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


def test_an_analytic_plan_with_a_target_builds_the_trainer_once(
    built: list[Any], tmp_path: Path
) -> None:
    fitted = apply_target(find_experiment("llama2-7b").config(), "tpu-v5p-512")
    assert not built, "the rule needs the size of the model and of the batch alone"
    planner = Planner(
        "llama2-7b", fitted.config, fitted.machine, ProgramCache(tmp_path), is_analytic=True
    )
    planner.check()
    planner.best_plan()
    assert len(built) == 1


def test_a_candidate_is_built_once(built: list[Any], tmp_path: Path) -> None:
    config = find_experiment("llama2-7b").tiny()
    planner = Planner("tiny", config, parse_target("cpu-8"), ProgramCache(tmp_path))
    now = configured_candidate(config, planner.machine)
    planner.compiled_plan(replace(now, remat=SaveNothing.Config(), offloads_optimizer=True))
    assert len(built) == 1


@pytest.mark.parametrize("remat", REMAT_POLICIES, ids=repr)
def test_a_candidate_sets_what_its_modifiers_set(remat: ConfigOf[Remat]) -> None:
    config = find_experiment("llama2-7b").tiny()
    now = configured_candidate(config, parse_target("cpu-8"))
    candidate = Candidate(now.mesh, remat, 4, True)
    typed = config.clone()
    for text in candidate.modifiers():
        typed = apply_modifier(typed, text)
    applied = candidate.apply(config)
    assert to_text(applied.set(mesh=typed.mesh)) == to_text(typed)
    assert to_text(config) == to_text(find_experiment("llama2-7b").tiny()), "it is not modified"


def test_a_candidate_may_have_any_policy() -> None:
    config = find_experiment("llama2-7b").tiny()
    now = configured_candidate(config, parse_target("cpu-8"))
    candidate = replace(now, remat=OffloadNamed.Config())
    assert "remat = dovetail.parallel:OffloadNamed" in to_text(candidate.apply(config))
    with pytest.raises(ConfigError, match=r"no value of `remat:save=` names OffloadNamed"):
        candidate.modifiers()


def test_candidates_keep_a_pipeline(tmp_path: Path) -> None:
    config = apply_modifier(find_experiment("llama2-7b").tiny(), "pipeline:microbatches=2")
    config.mesh.pipeline = 2
    planner = Planner("tiny", config, parse_target("cpu-8"), ProgramCache(tmp_path))
    found = list(candidates(planner.workload(), config, planner.machine))
    assert found
    now = configured_candidate(config, planner.machine)
    for each in (now, *found):
        assert dict(each.mesh)["pipeline"] == 2
        assert each.apply(config).learner.gradients == config.learner.gradients
        assert "accumulate" not in str(each)
    assert isinstance(config.learner.gradients, OneForwardOneBackward.Config)
    # A rule that was found for another experiment keeps it, too.
    accumulating = replace(now, microbatches=8, keeps_gradients=False)
    assert accumulating.apply(config).learner.gradients == config.learner.gradients
    plain = find_experiment("llama2-7b").tiny()
    assert accumulating.apply(plain).learner.gradients == Accumulate.Config(microbatches=8)
