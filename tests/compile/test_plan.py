"""Plans with the real compilers: what fits is what they take, and what is proposed compiles."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from dovetail.config import apply_modifier
from dovetail.experiments import find_experiment
from dovetail.models.llama import llama
from dovetail.plan import Planner, ProgramCache, search
from dovetail.targets import apply_target, parse_target
from tests.compile.programs import needs_gpu_compiler, needs_tpu_compiler


def experiment(batch: int, width: int, *modifiers: str) -> Any:
    """Returns a small Llama, whose kernels are those of a large one."""
    config = find_experiment("llama2-7b").tiny()
    heads = width // 128
    sizes = {"num_heads": heads, "num_kv_heads": heads, "hidden": 3 * width, "vocab_size": 1024}
    config.model = llama(width=width, num_layers=4, **sizes)
    config.input.set(sequence_length=1024, batch_size=batch)
    for modifier in ("bf16", *modifiers):
        config = apply_modifier(config, modifier)
    return config


def planner(target: str, folder: Path, batch: int = 64, width: int = 256) -> Planner:
    targeted = apply_target(experiment(batch, width), target)
    return Planner("small", targeted.config, targeted.machine, ProgramCache(folder))


def at_batch(batch: int, folder: Path) -> Planner:
    config = experiment(batch, 1024, "remat:save=everything")
    return Planner("small", config, parse_target("tpu-v5e-4"), ProgramCache(folder))


@needs_tpu_compiler
def test_the_boundary_is_the_compilers(tmp_path: Path) -> None:
    """From one program it is known about where it lies; then it is found by halving.

    One batch and the next differ by eight sequences on each of the four chips.
    """
    base = at_batch(64, tmp_path).compiled_plan().memory
    fixed = 2 * base.parameters + base.optimizer  # gradients are as large as parameters
    expected = 64 * (base.limit - fixed) / (base.total - fixed)
    low, high = int(0.93 * expected) // 32, -(-int(1.07 * expected) // 32)
    plans = {rows: at_batch(32 * rows, tmp_path).compiled_plan() for rows in (low, high)}
    while high - low > 1:
        middle = (low + high) // 2
        plans[middle] = at_batch(32 * middle, tmp_path).compiled_plan()
        low, high = (middle, high) if plans[middle].fits else (low, middle)
    below, above = plans[low], plans[high]
    assert below.fits
    assert 0.85 < below.memory.total / below.memory.limit <= 1
    assert not above.fits
    assert "memory" in above.refusal.lower()
    assert above.memory.total > above.memory.limit == pytest.approx(15.75 * 2**30, rel=0.001)
    assert all(plan.fits != bool(plan.refusal) for plan in plans.values()), "the compiler's word"


@needs_tpu_compiler
def test_what_a_search_proposes_compiles(tmp_path: Path) -> None:
    found = search(planner("tpu-v5e-8", tmp_path), verified=1)
    assert found.best is not None
    assert found.best.plan.source == found.best.plan.time_source == "compiled"
    assert found.best.plan.step_seconds <= found.rule.step_seconds
    assert any("splash" in line for line in found.best.plan.kernels)


@needs_tpu_compiler
def test_arithmetic_is_near_the_compiler(tmp_path: Path) -> None:
    plans = planner("tpu-v5p-16", tmp_path)
    rough, exact = plans.analytic_plan(), plans.compiled_plan()
    assert rough.memory.total == pytest.approx(exact.memory.total, rel=0.3)
    assert rough.timing.kernels == pytest.approx(exact.timing.kernels)
    assert exact.memory.activations == pytest.approx(rough.memory.activations, rel=0.15)


@needs_gpu_compiler
def test_gpus_tell_their_memory_and_arithmetic_their_time(tmp_path: Path) -> None:
    plans = planner("gpu-h100-16", tmp_path)
    rough, exact = plans.analytic_plan(), plans.compiled_plan()
    assert (exact.source, exact.time_source) == ("compiled", "analytic")
    assert exact.timing == rough.timing
    assert exact.fits
    assert exact.memory.limit == 80e9
    assert exact.memory.parameters == pytest.approx(rough.memory.parameters, rel=0.01)
    kinds = {(each.kind, each.axes) for each in exact.collectives}
    assert ("all-gather", "fsdp") in kinds or ("all-reduce", "data") in kinds


@needs_tpu_compiler
@needs_gpu_compiler
@pytest.mark.parametrize("target", ["tpu-v5e-4", "gpu-h100-8"])
def test_a_shell_with_no_settings_will_do(target: str, tmp_path: Path) -> None:
    """JAX looks for accelerators unless told not to, and its plugins complain without."""
    settings = {"JAX_PLATFORMS", "XLA_FLAGS", "TPU_SKIP_MDS_QUERY"}
    plain = {name: value for name, value in os.environ.items() if name not in settings}
    small = ("model.decoder.stack.num_layers=2", "input.batch_size=8")
    command = Path(sys.executable).with_name("dovetail")
    done = subprocess.run(
        [command, "plan", "tiny-lm", *small, "--target", target, "--json"],
        env=plain | {"XDG_CACHE_HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["source"] == "compiled"
    assert "Traceback" not in done.stderr
    assert "ERROR" not in done.stderr
