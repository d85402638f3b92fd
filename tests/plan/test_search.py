"""The search: every candidate divides, and nothing is proposed that was refused."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import dovetail
from dovetail.config import ConfigError, apply_modifier
from dovetail.experiments import find_experiment
from dovetail.plan import (
    Candidate,
    Plan,
    Planner,
    ProgramCache,
    TargetComparison,
    candidates,
    configured_candidate,
    rank_candidates,
    remedies,
    rule_source,
    search,
)
from dovetail.targets import apply_target, experiment_sharding, machine_program, parse_target


def planner_of(name: str, target: str, folder: Path) -> Planner:
    targeted = apply_target(find_experiment(name).config(), target)
    return Planner(name, targeted.config, targeted.machine, ProgramCache(folder))


@pytest.fixture(scope="module")
def planner(tmp_path_factory: pytest.TempPathFactory) -> Planner:
    return planner_of("llama2-7b", "tpu-v5p-512", tmp_path_factory.mktemp("programs"))


def rule_of(text: str) -> Any:
    """Returns the function of a generated rule file, without registering it."""
    from dovetail.targets.rule import _rules

    names: dict[str, Any] = {}
    with _rules.restored():
        exec(compile(text, "found.py", "exec"), names)
    return names["llama2_7b"]


def test_every_candidate_is_a_mesh_of_the_machine_that_divides(planner: Planner) -> None:
    found = list(candidates(planner.workload(), planner.config, planner.machine))
    assert len(found) > 500
    assert len(set(found)) == len(found)
    for each in found:
        assert math.prod(size for _, size in each.mesh) == 256
        assert 1024 % (each.batch_shards * each.microbatches) == 0
    config = found[-1].apply(planner.config)
    program = machine_program(config.build(), planner.machine)
    experiment_sharding(program, planner.machine)  # parameters, batch and activations


def test_the_fastest_plan_that_fits_comes_first(planner: Planner) -> None:
    ranked = rank_candidates(planner)
    fitting = [each for each in ranked if each.plan.fits]
    assert ranked[: len(fitting)] == fitting
    times = [each.plan.step_seconds for each in fitting]
    assert times == sorted(times)
    assert times[0] <= planner.analytic_plan().step_seconds, "the rule's own choice is among them"


class Refusing(Planner):
    """A planner whose compiler refuses some candidates."""

    refused: Any = ()

    def compiled_plan(self, candidate: Candidate | None = None) -> Plan:
        """Refuses `self.refused`."""
        plan = replace(self.analytic_plan(candidate), source="compiled", compile_seconds=0.0)
        return replace(plan, refusal="too big") if candidate in self.refused else plan

    @property
    def compile_obstacle(self) -> str:
        """There is a compiler."""
        return ""


def refusing(planner: Planner) -> Refusing:
    return Refusing(
        planner.name, planner.config, planner.machine, planner.cache, workloads=planner.workloads
    )


def test_a_refused_candidate_is_not_proposed(planner: Planner) -> None:
    judge = refusing(planner)
    first = search(judge).best
    assert first is not None
    judge.refused = [first.candidate]
    second = search(judge).best
    assert second is not None
    assert second.candidate != first.candidate
    assert second.plan.fits


def test_the_best_is_never_slower_than_the_rule(planner: Planner) -> None:
    judge = refusing(planner)
    judge.refused = [each.candidate for each in rank_candidates(planner)]
    found = search(judge)
    assert found.best is not None
    assert found.best.plan.step_seconds == found.rule.step_seconds
    facts = json.loads(json.dumps(found.facts()))
    assert facts["best"]["plan"] == facts["rule"]
    assert len(facts["verified"]) == len(found.verified)


def test_remedies_change_one_thing_and_fit(planner: Planner) -> None:
    judge = refusing(planner)
    judge.config = apply_modifier(planner.config, "remat:save=everything")
    judge.workloads = {}
    assert not judge.analytic_plan().fits
    found = remedies(judge)
    assert found
    now = configured_candidate(judge.config, judge.machine)
    for candidate, plan in found:
        assert plan.fits
        changed = [name for name, value in vars(candidate).items() if value != getattr(now, name)]
        assert len(changed) == 1, "one thing at a time"


def test_a_rule_file_applies_the_candidate(planner: Planner, tmp_path: Path) -> None:
    found = next(each for each in rank_candidates(planner) if each.candidate.microbatches > 1)
    rule = rule_of(rule_source("llama2-7b", planner.machine, found.candidate))
    made = rule(find_experiment("llama2-7b").config(), planner.machine)
    expected = found.candidate.apply(find_experiment("llama2-7b").config())
    assert made.mesh.build().shape(256) == expected.mesh.build().shape(256)
    # However many slices are joined, they share the batch.
    assert made.mesh.build().shape(512)["fsdp"] == dict(found.candidate.mesh)["fsdp"]
    assert made.set(mesh=expected.mesh) == expected


def test_a_candidate_replaces_the_choices_of_an_experiment(planner: Planner) -> None:
    config = find_experiment("llama2-7b").config()
    found = configured_candidate(planner.config, planner.machine)
    plain = found.apply(config)
    for modifier in ("accumulate:steps=8", "offload-optimizer"):
        config = apply_modifier(config, modifier)
    assert configured_candidate(config, planner.machine).microbatches == 8
    assert found.apply(config) == plain


def test_an_analytic_search_includes_the_rule(planner: Planner) -> None:
    analytic = replace(planner, is_analytic=True)
    found = search(analytic)
    assert found.rule in [each.plan for each in found.verified]
    assert found.best is not None
    assert found.best.plan.step_seconds <= found.rule.step_seconds


def test_a_compiler_that_fails_is_a_refusal_of_one_candidate(planner: Planner) -> None:
    class Failing(Refusing):
        def compiled_plan(self, candidate: Candidate | None = None) -> Plan:
            if candidate is not None and candidate in self.refused:
                raise ConfigError("The compiler refuses it, for a reason other than memory")
            return super().compiled_plan(candidate)

    judge = Failing(
        planner.name, planner.config, planner.machine, planner.cache, workloads=planner.workloads
    )
    judge.refused = [rank_candidates(planner)[0].candidate]
    found = search(judge)
    assert found.best is not None
    assert found.best.candidate not in judge.refused
    refused = [each for each in found.verified if each.candidate in judge.refused]
    assert "for a reason other than memory" in refused[0].plan.refusal


def test_a_search_skips_candidates_without_the_observed_margin(planner: Planner) -> None:
    class Hungry(Refusing):
        """A compiler that needs twice the analytic memory."""

        asked = 0

        def compiled_plan(self, candidate: Candidate | None = None) -> Plan:
            self.asked += 1
            plan = super().compiled_plan(candidate)
            rough = plan.memory
            memory = replace(rough, temporaries=rough.total + rough.temporaries)
            return replace(plan, memory=memory)

    judge = Hungry(
        planner.name, planner.config, planner.machine, planner.cache, workloads=planner.workloads
    )
    found = search(judge, verified=1)
    assert found.best is not None
    assert judge.asked == 3, "the rule, one that is refused, and one with enough margin"


def test_machines_are_compared() -> None:
    survey = TargetComparison("llama2-7b", find_experiment("llama2-7b").config())
    rows = {row.machine.name: row for row in survey.named(["tpu-v5p-512", "tpu-v5e-4"])}
    assert rows["tpu-v5p-512"].best is not None
    assert rows["tpu-v5p-512"].usd == pytest.approx(
        256 * 4.2 * 500_000 * rows["tpu-v5p-512"].best.plan.step_seconds / 3600
    )
    assert rows["tpu-v5e-4"].best is None, "80 GB of state on 64 GB"
    large, small = (json.loads(json.dumps(row.facts())) for row in rows.values())
    assert large["best"]["plan"]["fits"]
    assert large["usd"] == rows["tpu-v5p-512"].usd
    assert (small["fits"], small["best"], small["usd"]) == (False, None, None)


def test_a_cached_program_is_not_compiled_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from dovetail.plan import planner as module

    config = find_experiment("llama2-7b").tiny()

    def plan(config: Any, target: str = "cpu-8") -> Plan:
        return Planner("tiny", config, parse_target(target), ProgramCache(tmp_path)).compiled_plan()

    exact = plan(config)
    assert exact.source == exact.time_source == "compiled"
    assert exact.compile_seconds is not None

    def refuse(*_: Any) -> None:
        raise AssertionError("compiled again")

    monkeypatch.setattr(module, "compile_step", refuse)
    found = plan(config.clone().set(log_every=7))
    # A busy CPU may be measured again, so its seconds may differ.
    assert (found.memory, found.collectives) == (exact.memory, exact.collectives)
    assert (found.kernels, found.compile_seconds) == (exact.kernels, exact.compile_seconds)
    other = config.clone()
    other.input.batch_size = 16
    with pytest.raises(AssertionError, match="compiled again"):
        plan(other)
    with pytest.raises(AssertionError, match="compiled again"):
        plan(config, "cpu-4")
    with monkeypatch.context() as context:
        context.setenv("LIBTPU_INIT_ARGS", "--another")
        with pytest.raises(AssertionError, match="compiled again"):
            plan(config)
    for file in tmp_path.iterdir():  # half a file is no file
        file.write_bytes(file.read_bytes()[:-20])
    with pytest.raises(AssertionError, match="compiled again"):
        plan(config)


def test_an_analytic_plan_refuses_uneven_shards(tmp_path: Path) -> None:
    planner = planner_of("llama2-7b", "gpu-h100-192", tmp_path)
    planner.is_analytic = True
    planner.config.mesh.set(data=1, fsdp=64, model=3)
    assert "does not divide into 3 shards" in planner.plan_or_refusal().refusal, "a width of 4,096"
    planner = planner_of("llama2-7b", "trn2-64", tmp_path)
    planner.config.mesh.set(data=1, fsdp=4, model=64)
    assert "does not divide into 64 shards" in planner.plan_or_refusal().refusal, "32 heads"
    planner = replace(planner)  # a new one, because the first has built the experiment
    planner.config.mesh.set(fsdp=8, model=32)
    assert planner.plan_or_refusal().refusal == ""


@pytest.mark.parametrize("is_analytic", [True, False])
def test_uneven_shards_are_an_error_outside_of_a_search(is_analytic: bool, tmp_path: Path) -> None:
    config = find_experiment("llama2-7b").tiny()
    planner = Planner("tiny", config, parse_target("cpu-8"), ProgramCache(tmp_path))
    planner.is_analytic = is_analytic
    planner.config.mesh.set(data=1, fsdp=-1)
    planner.config.input.batch_size = 3
    with pytest.raises(ConfigError, match="does not divide into 8 shards"):
        planner.best_plan()
    assert "does not divide into 8 shards" in planner.plan_or_refusal().refusal


def test_a_search_refuses_to_replace_the_users_mesh() -> None:
    fitted = dovetail.experiment("tiny-lm").override("mesh.data=2", "mesh.fsdp=4")
    with pytest.raises(ConfigError, match=r"chooses the mesh: leave mesh\.\* out"):
        search(fitted.planner("cpu-8", compile=False))
