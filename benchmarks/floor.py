"""How far is Dovetail's training step from one written by hand?

Both train the same small Llama-style model with AdamW, clipping, a guard against non-finite
gradients and the same metrics. The floor calls the same attention and loss kernels; the plain step
is the naive one: full attention and all logits at once. Steps are interleaved, so that machine
noise affects all of them equally.

Collectives are counted in programs for several devices, which another process compiles, because
virtual devices would change the times.

    python benchmarks/floor.py
    python benchmarks/floor.py --pairs 5 --width 128     # a quick run
    python benchmarks/floor.py --devices 4               # compile for four devices, and only count
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import hand_written
import jax
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

from dovetail.learner import AdamW, ConstantSchedule, Learner
from dovetail.models.llama import llama
from dovetail.module import TokenBatch, sequence_batch_spec
from dovetail.parallel import AxisRules, MeshLayout, Placement, use_placement
from dovetail.trainer import Program

_DEVICES = 4


def main() -> None:
    """Builds the three steps, compares their programs, and times them."""
    arguments = _arguments()
    jax.config.update("jax_num_cpu_devices", arguments.devices)
    sizes = hand_written.Sizes(
        vocab=arguments.vocab,
        width=arguments.width,
        layers=arguments.layers,
        heads=arguments.heads,
        hidden=arguments.hidden,
    )
    batch = random_batch(arguments.batch, arguments.sequence, sizes.vocab)
    if arguments.devices > 1:
        print(json.dumps(_collectives(sizes, batch, arguments.devices)))
        return
    collectives = _in_another_process(["--devices", str(_DEVICES), *sys.argv[1:]])
    program = program_of(sizes, batch)
    state = program.initialize()
    params = state.params
    dovetail, hyperparameters = program.lowered.compile(), program.hyperparameters
    steps: dict[str, tuple[Any, Any]] = {
        "dovetail": (dovetail, jax.tree.map(jax.numpy.copy, state)),
        "floor": _compile(
            hand_written.make_step(sizes, fast=True), hand_written.init(_copy(params)), batch
        ),
        "plain": _compile(
            hand_written.make_step(sizes, fast=False), hand_written.init(_copy(params)), batch
        ),
    }
    programs = {name: _program_facts(compiled) for name, (compiled, _) in steps.items()}
    for name, facts in programs.items():
        print(f"{name:<9} {facts}")
    rest = {"dovetail": (batch, hyperparameters), "floor": (batch,), "plain": (batch,)}
    seconds, losses = _time(steps, rest, arguments.pairs)
    _report(programs, seconds, losses, collectives)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    for name, value in {
        "pairs": 30,
        "width": 256,
        "layers": 4,
        "heads": 4,
        "hidden": 688,
        "vocab": 8192,
        "sequence": 512,
        "batch": 4,
        "devices": 1,
    }.items():
        parser.add_argument(f"--{name}", type=int, default=value)
    return parser.parse_args()


def program_of(
    sizes: hand_written.Sizes,
    batch: Any,
    devices: int = 1,
    kernels: Callable[[], AbstractContextManager[None]] = nullcontext,
) -> Program:
    """Returns the program that the trainer would run, with the batch sharded over devices."""
    model = llama(
        vocab_size=sizes.vocab,
        width=sizes.width,
        num_layers=sizes.layers,
        num_heads=sizes.heads,
        hidden=sizes.hidden,
        tied=True,
    )
    learner = Learner.Config(
        optimizer=AdamW.Config(b1=hand_written.B1, b2=hand_written.B2, eps=hand_written.EPS),
        schedule=ConstantSchedule.Config(peak=hand_written.RATE),
        clip_norm=hand_written.CLIP,
        weight_decay=hand_written.DECAY,
    )
    spec = sequence_batch_spec(*batch.tokens.shape)
    mesh = MeshLayout.Config(data=devices, fsdp=1).build().mesh(jax.devices()[:devices])
    placement = Placement(mesh, AxisRules.Config().build())
    parts = (model.build(), learner.build(), spec, placement)
    return Program(*parts, make_key=lambda: jax.random.key(0), kernels=kernels)


def random_batch(rows: int, length: int, vocab: int) -> Any:
    """Returns a batch of one document a row."""
    tokens = np.random.default_rng(0).integers(0, vocab, (rows, length + 1), dtype=np.int32)
    positions = np.broadcast_to(np.arange(length, dtype=np.int32), (rows, length))
    batch = TokenBatch(
        tokens=tokens[:, :-1],
        targets=tokens[:, 1:],
        positions=positions,
        segment_ids=np.ones((rows, length), np.int32),
        loss_weights=np.ones((rows, length), np.float32),
    )
    return jax.tree.map(jax.numpy.asarray, batch)


def _compile(step: Callable[..., Any], state: Any, batch: Any) -> tuple[Any, Any]:
    return jax.jit(step, donate_argnums=0).lower(state, batch).compile(), state


def _collectives(sizes: hand_written.Sizes, batch: Any, devices: int) -> dict[str, dict[str, int]]:
    """Counts the collectives of both programs with the batch sharded over several devices."""
    program = program_of(sizes, batch, devices)
    everywhere = NamedSharding(program.placement.mesh, PartitionSpec())
    state = jax.eval_shape(hand_written.init, program.state_shapes.params)
    step = jax.jit(
        hand_written.make_step(sizes, fast=True),
        donate_argnums=0,
        in_shardings=(everywhere, program.batch_shardings),
        out_shardings=everywhere,
    )
    with use_placement(program.placement):  # kernels read the placement
        floor = step.lower(state, batch).compile()
    compiled = {"dovetail": program.lowered.compile(), "floor": floor}
    return {name: _program_facts(each) for name, each in compiled.items()}


def _in_another_process(options: list[str]) -> Any:
    command = [sys.executable, __file__, *options]
    return json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)


def _program_facts(compiled: Any) -> dict[str, int]:
    """Counts the operations of the optimized program."""
    text = compiled.as_text()
    memory = compiled.memory_analysis()
    return {
        "matmuls": len(
            re.findall(r" dot\(|__onednn\$matmul|custom_call_target=\"[^\"]*[Mm]atmul", text)
        ),
        "loops": len(re.findall(r" while\(", text)),
        "collectives": len(
            re.findall(r" (?:all-reduce|all-gather|reduce-scatter|all-to-all)\(", text)
        ),
        "bytes": memory.temp_size_in_bytes + memory.argument_size_in_bytes,
    }


def _time(
    steps: dict[str, Any], arguments: dict[str, tuple[Any, ...]], pairs: int
) -> tuple[dict[str, np.ndarray], dict[str, float]]:
    """Runs the steps in turn, each on its state and arguments, timed from call to result."""
    states = {name: state for name, (_, state) in steps.items()}
    seconds: dict[str, list[float]] = {name: [] for name in steps}
    losses: dict[str, float] = {}
    for round_number in range(pairs + 1):
        order = list(steps) if round_number % 2 else list(steps)[::-1]
        for name in order:
            before = time.perf_counter()
            result = steps[name][0](states[name], *arguments[name])
            states[name], report = jax.block_until_ready(result)
            seconds[name].append(time.perf_counter() - before)
            losses[name] = float(report.loss if name == "dovetail" else report["loss"])
        print(
            f"round {round_number:>3}  "
            + "  ".join(f"{n} {s[-1]:.3f} s" for n, s in seconds.items())
        )
    # The first round warms up caches and allocator.
    return {name: np.asarray(values[1:]) for name, values in seconds.items()}, losses


def _report(
    programs: dict[str, Any],
    seconds: dict[str, np.ndarray],
    losses: dict[str, float],
    collectives: dict[str, Any],
) -> None:
    ours, floor, plain = programs["dovetail"], programs["floor"], programs["plain"]
    ratio, interval = _ratio(seconds["dovetail"], seconds["floor"])
    plain_ratio, plain_interval = _ratio(seconds["dovetail"], seconds["plain"])
    print(f"losses after the last step: {losses}")
    if not np.allclose(losses["dovetail"], list(losses.values()), rtol=1e-3):
        raise SystemExit(
            "the three steps do not compute the same, so their times are not comparable"
        )
    print(
        f"time against the floor: {ratio:.3f}, 95% interval {interval[0]:.3f} to {interval[1]:.3f}"
    )
    low, high = plain_interval
    print(f"time against a plain step: {plain_ratio:.3f}, {low:.3f} to {high:.3f}")
    result = {
        "step_time_ratio": round(ratio, 4),
        "interval": [round(value, 4) for value in interval],
        "bytes_ratio": round(ours["bytes"] / floor["bytes"], 4),
        "matmuls": [ours["matmuls"], floor["matmuls"]],
        "loops": [ours["loops"], floor["loops"]],
        "collectives": [collectives[name]["collectives"] for name in ("dovetail", "floor")],
        "plain_time_ratio": round(plain_ratio, 4),
        "plain_bytes_ratio": round(ours["bytes"] / plain["bytes"], 4),
        "step_seconds": round(float(np.median(seconds["dovetail"])), 4),
        "pairs": len(seconds["floor"]),
    }
    print(json.dumps(result))


def _ratio(ours: np.ndarray, theirs: np.ndarray) -> tuple[float, tuple[float, float]]:
    """Returns the median ratio within rounds, and its bootstrap 95% interval."""
    ratios = ours / theirs
    random = np.random.default_rng(0)
    medians = np.median(random.choice(ratios, (10_000, len(ratios))), axis=1)
    low, high = np.quantile(medians, [0.025, 0.975])
    return float(np.median(ratios)), (float(low), float(high))


def _copy(params: Any) -> Any:
    return jax.tree.map(jax.numpy.copy, params)


if __name__ == "__main__":
    main()
