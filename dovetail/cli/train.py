"""Train an experiment, or continue a run.

Ctrl-C or SIGTERM finishes the step, saves and exits with code 75; the same command then continues.

  dovetail train tiny-lm
  dovetail train tiny-lm model.decoder.stack.num_layers=6 --steps 200
"""

from __future__ import annotations

import argparse
import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dovetail.cli.experiment import Chosen, add_experiment_arguments, choose
from dovetail.cli.output import count, print_json, say, size
from dovetail.config import ConfigError

if TYPE_CHECKING:
    from dovetail.trainer import Outcome, Trainer

_MFU = """The MFU shown while training is
  3 x forward matmul FLOPs (plain attention, counted in full) / seconds a step
  / peak FLOP/s of all chips; on a CPU the peak is its own measured matrix-product rate.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the verb's arguments."""
    add_experiment_arguments(parser)
    parser.epilog = _MFU
    parser.add_argument("--run", type=Path, metavar="FOLDER", help="default: runs/<experiment>")
    parser.add_argument(
        "--dry-run", action="store_true", help="compile and tell what would happen; train nothing"
    )
    parser.add_argument(
        "--profile", metavar="FIRST:END", help="write a profile of these steps, such as 10:13"
    )
    parser.add_argument(
        "--debug-nans",
        action="store_true",
        help="stop at the operation that makes the first NaN (slow)",
    )
    parser.add_argument("--json", action="store_true", help="print the result as JSON")
    parser.set_defaults(handler=run)


def run(arguments: argparse.Namespace) -> int:
    """Trains."""
    profiled = _profile_range(arguments.profile)
    chosen = choose(arguments)
    from dovetail.parallel import start_distributed
    from dovetail.runtime import use_compilation_cache

    use_compilation_cache()
    start_distributed()
    trainer = chosen.config.build()
    if arguments.dry_run:
        return _dry_run(trainer, arguments.json)
    return _train(chosen, trainer, arguments, profiled)


def _train(chosen: Chosen, trainer: Trainer, arguments: argparse.Namespace, profiled: Any) -> int:
    from dovetail.runtime import RunFolder
    from dovetail.trainer import Hooks, NonFiniteError

    folder = RunFolder(arguments.run or chosen.run_folder())
    folder.check_identity(chosen.config)
    trainer.program()  # a mesh or batch that does not fit is said before anything is written
    trainer.input.prepare()
    folder.claim(chosen.config, {"experiment": chosen.name, "imports": chosen.imports})
    for report in chosen.reports:
        say(report)
    say(f"training {chosen.name} in {folder.path}")
    around = _profiler(folder.path, profiled) if profiled else None
    hooks = Hooks(say, arguments.debug_nans, around)
    try:
        outcome = trainer.train(folder.path, hooks=hooks)
    except NonFiniteError as error:
        say(f"dovetail: {error}")
        return 1
    finally:
        folder.release()
    return _report(outcome, folder.path, arguments)


def _report(outcome: Outcome, folder: Path, arguments: argparse.Namespace) -> int:
    from dovetail.cli.summary import summary

    if arguments.json:
        numbers = {k: v for k, v in outcome.figures.items() if not isinstance(v, str)}
        print_json(
            {
                "run": str(folder),
                "step": outcome.step,
                "stopped_by": outcome.stopped_by,
                "saved": outcome.saved,
                "seconds": round(outcome.seconds, 2),
                "figures": numbers,
            }
        )
    else:
        print(summary(outcome, folder))
    if not outcome.saved:
        say(f"dovetail: the last save failed; {folder}/checkpoints holds the one before it.")
        return 1
    return 75 if outcome.stopped_by else 0


def _dry_run(trainer: Trainer, as_json: bool) -> int:
    """Compiles the step with no data, and tells what it would take."""
    from dovetail.kernels import choices
    from dovetail.module import parameter_specs

    program = trainer.program()
    memory = program.lower().compile().memory_analysis()
    facts = {
        "parameters": sum(spec.size for spec in parameter_specs(trainer.model).values()),
        "tokens_per_step": program.batch_spec.tokens.shape[0] * program.batch_spec.tokens.shape[1],
        "steps": trainer.steps,
        "step_flops": program.step_flops(),
        "mesh": {axis: n for axis, n in program.placement.mesh.shape.items() if n > 1},
        "argument_bytes": memory.argument_size_in_bytes,
        "temporary_bytes": memory.temp_size_in_bytes,
        "kernels": choices(),
    }
    if as_json:
        print_json(facts)
        return 0
    print(f"parameters       {count(facts['parameters'])}")
    print(f"tokens a step    {count(facts['tokens_per_step'])} x {facts['steps']} steps")
    print(f"work a step      {count(facts['step_flops'])} FLOPs")
    print(f"memory a device  {size(memory.argument_size_in_bytes)} of state and batch")
    print(f"                 {size(memory.temp_size_in_bytes)} of temporaries")
    for line in facts["kernels"]:
        print(f"kernel           {line}")
    return 0


def _profile_range(text: str | None) -> tuple[int, int] | None:
    if text is None:
        return None
    first, colon, end = text.partition(":")
    if not (colon and first.isdigit() and end.isdigit() and int(first) < int(end)):
        raise ConfigError(f"--profile: expected FIRST:END, such as 10:13, got {text!r}.")
    return int(first), int(end)


def _profiler(folder: Path, steps: tuple[int, int]) -> Callable[[int], Any]:
    """Returns a hook that profiles the chosen steps into the run folder."""
    import jax

    @contextlib.contextmanager
    def around(step: int) -> Iterator[None]:
        if step == steps[0]:
            jax.profiler.start_trace(str(folder / "profile"))
        with jax.profiler.StepTraceAnnotation("train", step_num=step):
            yield
        if step == steps[1] - 1:
            jax.profiler.stop_trace()
            say(f"profile of steps {steps[0]} to {steps[1]} in {folder / 'profile'}")

    return around
