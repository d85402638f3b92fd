"""Searching: everything that is ranked divides, and nothing is proposed that was refused."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from dovetail.config import ConfigError, apply_modifier
from dovetail.experiments import find_experiment
from dovetail.plan import (
    Candidate,
    Plan,
    Planner,
    ProgramCache,
    Survey,
    candidate_of,
    candidates,
    rank,
    remedies,
    rule_text,
    search,
)
from dovetail.targets import apply_target, lay_out, parse_target


def planner_of(name: str, target: str, folder: Path) -> Planner:
    targeted = apply_target(find_experiment(name).config(), target)
    return Planner(name, targeted.config, targeted.machine, ProgramCache(folder))


@pytest.fixture(scope="module")
def planner(tmp_path_factory: pytest.TempPathFactory) -> Planner:
    return planner_of("llama2-7b", "tpu-v5p-512", tmp_path_factory.mktemp("programs"))


def rule_of(text: str) -> Any:
    """Returns the function of a file that a search has written, and leaves no rule behind."""
    from dovetail.targets import registry

    names: dict[str, Any] = {}
    before = dict(registry._rules)
    try:
        exec(compile(text, "found.py", "exec"), names)
    finally:
        registry._rules.clear()
        registry._rules.update(before)
    return names["llama2_7b"]


def test_every_candidate_is_a_mesh_of_the_machine_that_divides(planner: Planner) -> None:
    found = list(candidates(planner.work(), planner.config, planner.machine))
    assert len(found) > 500
    assert len(set(found)) == len(found)
    for each in found:
        assert math.prod(size for _, size in each.mesh) == 256
        assert 1024 % (each.choice().shards * each.microbatches) == 0
    config = found[-1].apply(planner.config)
    lay_out(config, planner.machine)  # parameters, batch and activations


def test_the_fastest_that_fits_stands_first(planner: Planner) -> None:
    ranked = rank(planner)
    fitting = [each for each in ranked if each.plan.fits]
    assert ranked[: len(fitting)] == fitting
    times = [each.plan.step_s for each in fitting]
    assert times == sorted(times)
    assert times[0] <= planner.rough().step_s, "the rule's own choice is among them"


class Refusing(Planner):
    """A planner whose compiler refuses what arithmetic likes best."""

    refused: Any = ()

    def exact(self, candidate: Candidate | None = None) -> Plan:
        """Says no to some, and yes to the others."""
        plan = replace(self.rough(candidate), source="compiled", compile_s=0.0)
        return replace(plan, refusal="too big") if candidate in self.refused else plan

    @property
    def obstacle(self) -> str:
        """There is a compiler."""
        return ""


def refusing(planner: Planner) -> Refusing:
    return Refusing(
        planner.name, planner.config, planner.machine, planner.cache, works=planner.works
    )


def test_what_the_compiler_refuses_is_not_proposed(planner: Planner) -> None:
    judge = refusing(planner)
    first = search(judge).best
    assert first is not None
    judge.refused = [first.candidate]
    second = search(judge).best
    assert second is not None
    assert second.candidate != first.candidate
    assert second.plan.fits


def test_the_rule_is_never_beaten_backwards(planner: Planner) -> None:
    judge = refusing(planner)
    judge.refused = [each.candidate for each in rank(planner)]
    found = search(judge)
    assert found.best is not None
    assert found.best.plan.step_s == found.rule.step_s


def test_what_is_too_big_gets_the_nearest_that_fits(planner: Planner) -> None:
    judge = refusing(planner)
    judge.config = apply_modifier(planner.config, "remat:keep=everything")
    judge.works = {}
    assert not judge.rough().fits
    found = remedies(judge)
    assert found
    now = candidate_of(judge.config, judge.machine)
    for candidate, plan in found:
        assert plan.fits
        changed = [name for name, value in vars(candidate).items() if value != getattr(now, name)]
        assert len(changed) == 1, "one thing at a time"


def test_a_rule_file_does_what_was_found(planner: Planner, tmp_path: Path) -> None:
    found = next(each for each in rank(planner) if each.candidate.microbatches > 1)
    rule = rule_of(rule_text("llama2-7b", planner.machine, found.candidate))
    made = rule(find_experiment("llama2-7b").config(), planner.machine)
    expected = found.candidate.apply(find_experiment("llama2-7b").config())
    assert made.mesh.build().shape(256) == expected.mesh.build().shape(256)
    # However many slices are joined, they share the batch.
    assert made.mesh.build().shape(512)["fsdp"] == dict(found.candidate.mesh)["fsdp"]
    assert made.set(mesh=expected.mesh) == expected


def test_what_was_found_gives_way_to_nothing(planner: Planner) -> None:
    """What accumulates and offloads of its own is fitted as was found all the same."""
    config = find_experiment("llama2-7b").config()
    found = candidate_of(planner.config, planner.machine)
    plain = found.apply(config)
    for modifier in ("accumulate:steps=8", "offload-optimizer"):
        config = apply_modifier(config, modifier)
    assert candidate_of(config, planner.machine).microbatches == 8
    assert found.apply(config) == plain


def test_a_search_by_arithmetic_knows_the_rule_too(planner: Planner) -> None:
    analytic = replace(planner, is_analytic=True)
    found = search(analytic)
    assert found.rule in [each.plan for each in found.verified]
    assert found.best is not None
    assert found.best.plan.step_s <= found.rule.step_s


def test_a_compiler_that_fails_is_a_refusal_of_one_candidate(planner: Planner) -> None:
    class Failing(Refusing):
        def exact(self, candidate: Candidate | None = None) -> Plan:
            if candidate is not None and candidate in self.refused:
                raise ConfigError("The compiler refuses this program, and not for want of memory")
            return super().exact(candidate)

    judge = Failing(
        planner.name, planner.config, planner.machine, planner.cache, works=planner.works
    )
    judge.refused = [rank(planner)[0].candidate]
    found = search(judge)
    assert found.best is not None
    assert found.best.candidate not in judge.refused
    refused = [each for each in found.verified if each.candidate in judge.refused]
    assert "not for want of memory" in refused[0].plan.refusal


def test_a_search_learns_how_much_more_the_compiler_wants(planner: Planner) -> None:
    class Hungry(Refusing):
        """A compiler that wants twice of what arithmetic says."""

        asked = 0

        def exact(self, candidate: Candidate | None = None) -> Plan:
            self.asked += 1
            plan = super().exact(candidate)
            rough = plan.memory
            memory = replace(rough, temporaries=rough.total + rough.temporaries)
            return replace(plan, memory=memory)

    judge = Hungry(
        planner.name, planner.config, planner.machine, planner.cache, works=planner.works
    )
    found = search(judge, verified=1)
    assert found.best is not None
    assert judge.asked == 3, "the rule's, one that is refused, and one with room to spare"


def test_machines_are_compared() -> None:
    survey = Survey("llama2-7b", find_experiment("llama2-7b").config())
    rows = {row.machine.name: row for row in survey.named(["tpu-v5p-512", "tpu-v5e-4"])}
    assert rows["tpu-v5p-512"].best is not None
    assert rows["tpu-v5p-512"].usd == pytest.approx(
        256 * 4.2 * 500_000 * rows["tpu-v5p-512"].best.plan.step_s / 3600
    )
    assert rows["tpu-v5e-4"].best is None, "80 GB of state on 64 GB"


def test_what_was_compiled_is_not_compiled_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from dovetail.plan import planner as module

    config = find_experiment("llama2-7b").tiny()

    def plan(config: Any, target: str = "cpu-8") -> Plan:
        return Planner("tiny", config, parse_target(target), ProgramCache(tmp_path)).exact()

    exact = plan(config)
    assert exact.source == exact.time_source == "compiled"
    assert exact.compile_s is not None

    def refuse(*_: Any) -> None:
        raise AssertionError("compiled again")

    monkeypatch.setattr(module, "compile_step", refuse)
    found = plan(config.clone().set(log_every=7))
    # A busy CPU may be measured again, so its seconds may differ.
    assert (found.memory, found.exchanges) == (exact.memory, exact.exchanges)
    assert (found.kernels, found.compile_s) == (exact.kernels, exact.compile_s)
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


def test_arithmetic_alone_sees_what_does_not_divide(tmp_path: Path) -> None:
    planner = planner_of("llama2-7b", "gpu-h100-192", tmp_path)
    planner.is_analytic = True
    planner.config.mesh.set(data=1, fsdp=64, model=3)
    assert "does not divide into 3 parts" in planner.judged().refusal, "a width of 4,096"
    planner = planner_of("llama2-7b", "trn2-64", tmp_path)
    planner.config.mesh.set(data=1, fsdp=4, model=64)
    assert "does not divide into 64 parts" in planner.judged().refusal, "32 heads"
    planner.config.mesh.set(fsdp=8, model=32)
    assert planner.judged().refusal == ""
