"""What do the protections of a run cost?

Three loops train the same model, in short turns one after the other, so that machine noise affects
all of them equally:

    bare        the compiled step and the data, nothing else
    protected   the training loop: fault policy, heartbeat, goodput log, writers in threads
    saving      the same, with a save every 20 steps: digests, manifest, read back and verified

It prints the median time of a step of each and the ratios, and what the digests take of a save.

    python benchmarks/protections.py
    python benchmarks/protections.py --turns 3 --steps 41     # a quick run
"""

from __future__ import annotations

import argparse
import shutil
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import jax

from dovetail.experiments import experiments
from dovetail.runtime import Checkpointer, digests, read_digests, use_compilation_cache
from dovetail.trainer import Hooks, Trainer

_SAVE_EVERY = 20


def main() -> None:
    """Runs the turns and prints the ratios."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--turns", type=int, default=7)
    parser.add_argument("--steps", type=int, default=61, help="steps of a turn")
    arguments = parser.parse_args()
    # The time between the first and the last step includes the saves before the last step.
    if (arguments.steps - 1) // _SAVE_EVERY < 2:
        parser.error(
            f"--steps: expected {2 * _SAVE_EVERY + 1} or more, so that there are two saves"
        )
    use_compilation_cache()
    config = experiments()["tiny-lm"].config()
    config.set(evaluators={}, steps=arguments.steps)
    with tempfile.TemporaryDirectory() as folder:
        contenders = {
            "bare": lambda: _bare(config.clone(), arguments.steps),
            "protected": lambda: _train(config.clone(), Path(folder) / "run", 10**6),
            "saving": lambda: _train(config.clone(), Path(folder) / "run", _SAVE_EVERY),
        }
        seconds: dict[str, list[float]] = {name: [] for name in contenders}
        for turn in range(arguments.turns + 1):
            for name, run in contenders.items():
                found = run()
                if turn:  # the first one compiles
                    seconds[name].append(found)
        ratios = {
            name: statistics.median(
                mine / bare for mine, bare in zip(seconds[name], seconds["bare"], strict=True)
            )
            for name in contenders
        }
        for name in contenders:
            median = statistics.median(seconds[name])
            print(f"{name:10} {median * 1e3:8.1f} ms a step   {ratios[name]:.3f} of bare")
        _digest_share(config.build(), Path(folder) / "share")


def _bare(config: Trainer.Config, steps: int) -> float:
    trainer = config.build()
    program = trainer.program()
    train_step, state = program.lowered.compile(), trainer.initial_state()
    batches = [trainer.batch(step) for step in range(steps)]
    jax.block_until_ready((state, batches))
    started = time.perf_counter()
    for batch in batches:
        state, report = train_step(state, batch, program.hyperparameters)
    jax.block_until_ready(report)
    return (time.perf_counter() - started) / steps


def _train(config: Trainer.Config, folder: Path, every: int) -> float:
    """Trains in a new folder; measures from the first step to the last."""
    shutil.rmtree(folder, ignore_errors=True)
    config.set(checkpointer=Checkpointer.Config(every=every))
    config.writers.pop("console")
    times: list[float] = []
    hooks = Hooks(lambda line: None, around_step=lambda step: times.append(time.perf_counter()))
    config.build().train(folder, hooks)
    return (times[-1] - times[0]) / (len(times) - 1)


def _digest_share(trainer: Any, folder: Path) -> None:
    """Prints what the digests take of a save."""
    state = trainer.initial_state()
    checkpointer = Checkpointer.Config().build()
    checkpointer.open(folder)
    digest, save = [], []
    for step in range(6):
        started = time.perf_counter()
        read_digests(digests(state))
        digest.append(time.perf_counter() - started)
        current = jax.tree.map(lambda leaf: leaf, state)
        object.__setattr__(current, "step", jax.numpy.int32(step))
        started = time.perf_counter()
        checkpointer.save(step, current)
        checkpointer.finish()
        save.append(time.perf_counter() - started)
    part, whole = statistics.median(digest[1:]), statistics.median(save[1:])
    print(f"digests    {part * 1e3:8.1f} ms of a save of {whole * 1e3:.1f} ms: {part / whole:.1%}")


if __name__ == "__main__":
    main()
