"""A training step for TPUs and GPUs: kernels are chosen for the target devices."""

from __future__ import annotations

import functools
from typing import Any

import pytest

from dovetail.config import apply_modifier
from dovetail.experiments import find_experiment
from dovetail.kernels import choices, clear_choices
from dovetail.parallel import MeshLayout
from dovetail.targets import (
    gpu_topology,
    missing_compiler,
    parse_target,
    topology_devices,
    tpu_topology,
)
from tests.compile.programs import (
    custom_calls,
    kernel_runs,
    needs_gpu_compiler,
    needs_tpu_compiler,
)

TINY_LAYERS = 2
"""Of tiny-lm's tiny form."""


def compiled_step(name: str, devices: Any, *modifiers: str) -> Any:
    """Compiles the step of an experiment's tiny form over eight devices."""
    clear_choices()
    config = functools.reduce(apply_modifier, modifiers, find_experiment(name).tiny())
    config.input.sequence_length = 128
    config.input.batch_size = 16
    config.mesh = MeshLayout.Config(fsdp=4, model=2)
    config.kernels.strict = True
    return config.build().program(tuple(devices)).lowered.compile()


def chosen() -> set[str]:
    return {line.partition(" (")[0] for line in choices()}


@needs_tpu_compiler
@pytest.mark.parametrize(
    ("name", "kernels"),
    [
        ("llama2-7b", 3),
        # Three of attention; three linear maps of the experts, each with three products.
        ("mixtral-8x7b", 12),
    ],
)
def test_on_tpus_nothing_is_slow(name: str, kernels: int) -> None:
    program = compiled_step(name, tpu_topology("v5e:2x4"))
    assert custom_calls(program)["tpu_custom_call"] == kernels
    expected = {"attention: splash", "cross_entropy: chunked"}
    assert chosen() == expected | ({"grouped_matmul: megablox"} if kernels > 3 else set())
    assert all("(tpu" in line for line in choices())


@needs_gpu_compiler
@pytest.mark.parametrize(
    ("modifiers", "kernels", "chosen_too"),
    [((), 3, set()), (("moe:num_experts=4",), 12, {"grouped_matmul: triton"})],
    ids=["dense", "experts"],
)
def test_on_gpus_nothing_is_slow(
    modifiers: tuple[str, ...], kernels: int, chosen_too: set[str]
) -> None:
    program = compiled_step("tiny-lm", gpu_topology("nvidia-h100"), *modifiers)
    assert kernel_runs(program) == kernels * TINY_LAYERS
    assert chosen() == {"attention: triton", "cross_entropy: chunked"} | chosen_too
    assert all("(gpu" in line for line in choices())


@needs_gpu_compiler
@pytest.mark.parametrize("target", ["gpu-a100-40gb-8", "gpu-gb200-8"])
def test_a_plan_finds_the_compiler_of_each_gpu(target: str) -> None:
    machine = parse_target(target)
    assert missing_compiler(machine) == ""
    program = compiled_step("tiny-lm", topology_devices(machine))
    assert custom_calls(program)["__gpu$xla.gpu.triton"] == 3
