"""Planned and measured memory: the growth of a process's peak when it runs a step on the CPU.

Each configuration is planned and run in its own process. After compilation and initialization the
process trims its heap and resets its peak (`/proc/self/clear_refs`), so that the compiler's memory
does not count. The measurement is the growth from there plus the state. Linux only.

    python benchmarks/plan_memory.py [--only NAME] [--json]
"""

from __future__ import annotations

import argparse
import ctypes
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

# Name: (experiment, modifiers, overrides). Each plans for a peak of 1 GiB or more.
CONFIGURATIONS: dict[str, tuple[str, list[str], list[str]]] = {
    "dense, all saved": (
        "tiny-lm",
        ["remat:save=everything"],
        ["input.batch_size=64", "input.sequence_length=512"],
    ),
    "dense, nothing saved": (
        "small-lm",
        ["remat:save=nothing"],
        ["input.batch_size=64", "input.sequence_length=1024"],
    ),
    "experts": (
        "tiny-lm",
        ["moe:num_experts=8", "remat:save=attention"],
        ["input.batch_size=96", "input.sequence_length=512"],
    ),
    "hybrid": ("tiny-hybrid", [], ["input.batch_size=64", "input.sequence_length=512"]),
    "many parameters": (
        "small-lm",
        ["remat:save=dots"],
        ["model.decoder.stack.num_layers=48", "input.batch_size=8"],
    ),
}
GIB = 2**30


def measure(name: str) -> dict[str, Any]:
    """Plans a configuration, runs two steps of it, and returns both results."""
    import jax

    from dovetail.config import apply_modifier, apply_overrides
    from dovetail.experiments import find_experiment
    from dovetail.plan import Planner, ProgramCache
    from dovetail.targets import apply_target

    experiment, modifiers, overrides = CONFIGURATIONS[name]
    config = find_experiment(experiment).config()
    for text in modifiers:
        config = apply_modifier(config, text)
    targeted = apply_target(apply_overrides(config, overrides), "cpu")
    plan = Planner(experiment, targeted.config, targeted.machine, ProgramCache()).compiled_plan()
    trainer = targeted.config.build()
    program = trainer.program()
    step = program.lowered.compile()
    state = program.initialize()
    shapes = jax.tree.map(lambda leaf: leaf.struct(), program.batch_spec)
    batch = jax.tree.map(
        lambda leaf, sharding: jax.device_put(jax.numpy.ones(leaf.shape, leaf.dtype), sharding),
        shapes,
        program.batch_shardings,
    )
    held = sum(leaf.nbytes for leaf in jax.tree.leaves(jax.block_until_ready((state, batch))))
    ctypes.CDLL(None).malloc_trim(0)
    before = _status("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")
    for _ in range(2):
        state, report = step(state, batch, program.hyperparameters)
        jax.block_until_ready(report.loss)
    return {
        "planned": plan.memory.total,
        "measured": _status("VmHWM") - before + held,
        "step_s": plan.step_seconds,
    }


def _status(name: str) -> int:
    """Returns a field of `/proc/self/status` in bytes."""
    found = re.search(rf"{name}:\s+(\d+) kB", Path("/proc/self/status").read_text())
    assert found is not None, name
    return int(found[1]) * 1024


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", choices=CONFIGURATIONS)
    parser.add_argument("--measure", choices=CONFIGURATIONS, help=argparse.SUPPRESS)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    if arguments.measure:
        print(json.dumps(measure(arguments.measure)))
        return
    rows = {}
    for name in [arguments.only] if arguments.only else CONFIGURATIONS:
        command = [sys.executable, __file__, "--measure", name]
        output = subprocess.run(command, check=True, capture_output=True, text=True).stdout
        rows[name] = row = json.loads(output.splitlines()[-1])
        if not arguments.json:
            print(
                f"{name:<22} planned {row['planned'] / GIB:6.3f} GiB   "
                f"measured {row['measured'] / GIB:6.3f} GiB   "
                f"ratio {row['planned'] / row['measured']:.3f}",
                flush=True,
            )
    if arguments.json:
        print(json.dumps(rows, indent=2))


if __name__ == "__main__":
    main()
