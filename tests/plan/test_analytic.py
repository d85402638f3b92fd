"""Analytic plans: invariants, and the distance to compiled plans."""

from __future__ import annotations

from typing import Any

import pytest

from dovetail.config import apply_modifier
from dovetail.experiments import find_experiment
from dovetail.plan import (
    Candidate,
    Plan,
    Planner,
    ProgramCache,
    Workload,
    estimate_plan,
    trace_workload,
)
from dovetail.targets import Machine, apply_target, parse_target

AXES = ("pipeline", "data", "fsdp", "expert", "sequence", "model")


def mesh(**sizes: int) -> dict[str, int]:
    return {axis: sizes.get(axis, 1) for axis in AXES}


@pytest.fixture(scope="module")
def machine() -> Machine:
    return parse_target("tpu-v5p-512")


@pytest.fixture(scope="module")
def work() -> Workload:
    config = apply_target(find_experiment("llama2-7b").config(), "tpu-v5p-512").config
    return trace_workload(config.build(), "tpu")


def plan(work: Workload, machine: Machine, parts: int = 1, **sizes: int) -> Plan:
    return estimate_plan(
        "llama2-7b", 1, work, machine, Candidate(tuple(mesh(**sizes).items()), None, parts, False)
    )


def test_state_is_sharded_over_fsdp_alone(work: Workload, machine: Machine) -> None:
    few = plan(work, machine, data=64, fsdp=4).memory
    many = plan(work, machine, data=4, fsdp=64).memory
    assert few.parameters == pytest.approx(16 * many.parameters, rel=0.01)
    assert few.optimizer == pytest.approx(16 * many.optimizer, rel=0.01)
    assert few.activations == many.activations, "either way 256 devices share the batch"
    # Llama 2 7B in float32, over 64 devices.
    assert many.parameters == pytest.approx(6.738e9 * 4 / 64, rel=0.01)


def test_microbatches_save_less_and_communicate_more(work: Workload, machine: Machine) -> None:
    single = plan(work, machine, data=4, fsdp=64)
    parts = plan(work, machine, 4, data=4, fsdp=64)
    assert parts.memory.activations == single.memory.activations / 4
    moved = [sum(each.bytes for each in found.collectives) for found in (single, parts)]
    assert moved[1] == pytest.approx(4 * moved[0])
    assert parts.timing.matmul == single.timing.matmul


def test_collectives_have_the_bytes_of_the_parameters(work: Workload, machine: Machine) -> None:
    found = {
        (each.kind, each.axes): each.bytes
        for each in plan(work, machine, data=4, fsdp=64).collectives
    }
    parameters = 6.738e9 * 2  # in bfloat16
    assert found["all-gather", "fsdp"] == pytest.approx(2 * parameters, rel=0.01)
    assert found["reduce-scatter", "fsdp"] == pytest.approx(parameters, rel=0.01)
    assert found["all-reduce", "data"] == pytest.approx(parameters / 64, rel=0.01)


def test_mfu_price_and_tokens_follow_from_the_seconds(work: Workload, machine: Machine) -> None:
    found = plan(work, machine, data=4, fsdp=64)
    assert found.items == {"tokens": 1024 * 4096}
    assert found.mfu == pytest.approx(work.model_flops / found.step_seconds / (256 * 459e12))
    assert found.usd_per_step == pytest.approx(256 * 4.2 * found.step_seconds / 3600)
    trillion = found.usd_per_step * 1e12 / (1024 * 4096)
    assert found.usd_per_trillion_items == pytest.approx(trillion)
    facts = found.facts()
    for name in (
        "fits",
        "memory_bytes_per_chip",
        "memory_limit_bytes",
        "predicted_step_s",
        "mfu",
        "collective_bytes",
        "source",
        "compile_s",
        "tokens_per_step",
        "usd_per_trillion_tokens",
    ):
        assert name in facts
    assert (facts["source"], facts["compile_s"]) == ("analytic", None)


@pytest.mark.parametrize(
    ("name", "target"),
    [
        ("llama2-7b", "gpu-h100-256"),
        ("llama2-70b", "gpu-h100-512"),
        ("llama2-70b", "tpu-v5p-1024"),
        ("llama2-70b", "trn2-1024"),
    ],
)
@pytest.mark.filterwarnings("ignore::dovetail.kernels.SlowKernelWarning")
def test_what_a_rule_chooses_fits(name: str, target: str, tmp_path: Any) -> None:
    targeted = apply_target(find_experiment(name).config(), target)
    found = Planner(name, targeted.config, targeted.machine, ProgramCache(tmp_path)).analytic_plan()
    assert found.fits


def small(*modifiers: str) -> Any:
    config = find_experiment("tiny-lm").config()
    for modifier in modifiers:
        config = apply_modifier(config, modifier)
    return config


@pytest.mark.slow
@pytest.mark.parametrize("save", ["everything", "nothing"])
def test_it_is_near_the_compiled_plan(save: str, tmp_path: Any) -> None:
    """Saved activations are counted exactly; XLA's temporaries are a guess."""
    config = small(f"remat:save={save}")
    config.input.set(sequence_length=512, batch_size=64)
    targeted = apply_target(config, "cpu-8")
    planner = Planner("tiny-lm", targeted.config, targeted.machine, ProgramCache(tmp_path))
    rough, exact = planner.analytic_plan(), planner.compiled_plan()
    assert rough.memory.parameters == pytest.approx(exact.memory.parameters, rel=0.01)
    assert rough.memory.total == pytest.approx(exact.memory.total, rel=0.5)
    assert rough.timing.matmul == pytest.approx(exact.timing.matmul, rel=0.1)
