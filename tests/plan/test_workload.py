"""Traced workloads, compared with compiled steps."""

from __future__ import annotations

from typing import Any

import jax
import pytest

from dovetail.config import apply_modifier
from dovetail.experiments import find_experiment
from dovetail.kernels import target_platform, watch_kernels
from dovetail.plan import trace_workload
from dovetail.plan.hlo import HloProgram
from dovetail.plan.hlo_cost import instruction_cost

MODELS = ("llama2-7b", "mixtral-8x7b", "deepseek-v3", "tiny-hybrid")


def tiny(name: str, *modifiers: str) -> Any:
    config = find_experiment(name).tiny()
    for modifier in modifiers:
        config = apply_modifier(config, modifier)
    return config


def compiled_flops(config: Any) -> float:
    trainer = config.build()
    program = trainer.program(tuple(jax.devices()[:1]))
    text = HloProgram(program.lowered.compile().as_text())
    return sum(
        runs * instruction_cost(text, text.computations[name], each).flops
        for name, runs in text.runs().items()
        for each in text.computations[name].instructions
    )


@pytest.mark.parametrize("save", ["everything", "nothing", "dots"])
def test_matmul_flops_are_those_of_the_compiled_step(save: str) -> None:
    config = tiny("llama2-7b", f"remat:save={save}")
    work = trace_workload(config.build(), "cpu")
    assert work.kernel_flops == 0, "on a CPU attention is XLA's own"
    planned = work.matmul_flops * work.size.batch_size
    assert planned == pytest.approx(compiled_flops(config), rel=0.02)


def test_recomputed_matmuls_count_again() -> None:
    everything = trace_workload(tiny("llama2-7b", "remat:save=everything").build(), "tpu")
    nothing = trace_workload(tiny("llama2-7b", "remat:save=nothing").build(), "tpu")
    assert nothing.matmul_flops > 1.2 * everything.matmul_flops
    saved = [sum(each.bytes for each in work.saved_activations) for work in (nothing, everything)]
    assert saved[0] < saved[1]


def test_a_kernel_whose_result_is_saved_is_not_recomputed() -> None:
    def kernels(save: str) -> float:
        config = tiny("llama2-7b", f"remat:save={save}")
        config.input.sequence_length = 128
        return trace_workload(config.build(), "tpu").kernel_flops

    # Two products forwards; three and four in the two kernels of the backward pass.
    assert kernels("nothing") == pytest.approx(kernels("attention") * 11 / 9)


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("platform", ["tpu", "gpu", "cpu"])
@pytest.mark.filterwarnings("ignore::dovetail.kernels.SlowKernelWarning")
def test_every_kernel_is_counted(name: str, platform: str) -> None:
    config = tiny(name, "bf16")
    config.input.set(sequence_length=256, batch_size=8)
    work = trace_workload(config.build(), platform)
    assert not work.unknown_kernels
    assert work.matmul_flops > 0
    assert work.items == {"tokens": 8 * 256}


@pytest.mark.filterwarnings("ignore::dovetail.kernels.SlowKernelWarning")
def test_loops_whose_length_depends_on_data_are_counted() -> None:
    """Without a kernel, attention over long sequences is a loop over blocks that skips some."""

    def work(length: int) -> Any:
        config = tiny("llama2-7b")
        config.input.set(sequence_length=length, batch_size=4)
        return trace_workload(config.build(), "cpu")

    short, long = work(4096), work(16384)
    assert (short.has_dynamic_loops, long.has_dynamic_loops) == (False, True)
    assert long.matmul_flops * 4 >= long.model_flops
    assert long.matmul_flops > 8 * short.matmul_flops, "attention is most of it"


def test_model_flops_are_those_of_mfu() -> None:
    config = tiny("llama2-7b")
    trainer = config.build()
    assert trace_workload(trainer, "tpu").model_flops == trainer.program().step_flops()


def test_a_counter_returns_none_for_unknown_kernels() -> None:
    with target_platform("tpu"), watch_kernels() as counter:
        pass
    assert counter.flops("splash_mha_fwd", [(1, 2, 128, 128)] * 3) is None


@pytest.mark.parametrize(
    "name", ["gemma2-2b", "gpt-oss-20b", "deepseek-v3", "mistral-7b", "qwen3-30b-a3b"]
)
@pytest.mark.parametrize("platform", ["gpu", "tpu"])
def test_no_family_is_slow_on_accelerators(name: str, platform: str) -> None:
    """Kernels cover windows, soft caps, sinks, latent attention and experts in full size."""
    work = trace_workload(find_experiment(name).config().build(), platform)
    assert work.slow == ()
    assert work.unknown_kernels == ()
