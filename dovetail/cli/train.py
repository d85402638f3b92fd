"""Train an experiment, or continue a run.

Ctrl-C or SIGTERM finishes the step, saves and exits with code 75; the same command then continues.

  dovetail train tiny-lm
  dovetail train tiny-lm model.decoder.stack.num_layers=6 --steps 200
"""

from __future__ import annotations

import argparse
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from dovetail.cli.experiment import Chosen, add_experiment_arguments, choose
from dovetail.cli.output import print_json, say
from dovetail.cli.profiler import Profiler, check_range, profile_range
from dovetail.config import ConfigError
from dovetail.hardware import MFU_FORMULA
from dovetail.targets import Machine, device_here, difference_here, prepare_devices

if TYPE_CHECKING:
    from dovetail.runtime import RunFolder, StopRequest
    from dovetail.trainer import Outcome, Trainer

_STOPPED = 75


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the verb's arguments."""
    add_experiment_arguments(parser)
    mfu = f"{MFU_FORMULA}. The peak of a CPU is its own measured rate of matrix products."
    parser.epilog = textwrap.fill(mfu, 80)
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
    steps = profile_range(arguments.profile)
    chosen = choose(arguments)
    if steps is not None:
        check_range(steps, 0, chosen.config.steps)
    from dovetail.parallel import start_distributed
    from dovetail.runtime import RunFolder, StopRequest, use_compilation_cache

    use_compilation_cache()
    prepare_devices(chosen.machine)
    process = start_distributed()
    if arguments.dry_run:
        return _dry_run(chosen, arguments.json)
    _refuse_elsewhere(chosen.machine)
    # One process writes and talks; the others only compute.
    tell = say if process.index == 0 else _keep_quiet
    with StopRequest() as stop:
        trainer = chosen.config.build()
        folder = RunFolder(arguments.run or chosen.run_folder())
        folder.check_identity(chosen.config)
        saved = trainer.saved_step(folder.path)
        if saved > trainer.steps:
            return _report_complete(trainer.steps, saved, folder.path, arguments, process.index)
        if steps is not None:
            check_range(steps, saved, trainer.steps)
        trainer.check(folder.path)  # what cannot work is said before anything is written
        # Of several processes none leaves alone; they stop together, before their first step.
        if stop.received is not None and process.count == 1:
            tell(f"dovetail: stopped by {stop.received} before the first step; nothing is written")
            return _STOPPED
        if process.index == 0:
            noted = {"data": _data(trainer), "device": device_here()}
            folder.claim(chosen.config, chosen.about() | noted)
        try:
            for report in chosen.reports:
                tell(report)
            tell(f"training {chosen.name} in {folder.path}")
            outcome = _train(trainer, folder, arguments.debug_nans, steps, stop, tell)
        finally:
            folder.release()
    if outcome is None:
        return 1
    if process.index == 0:
        _report(outcome, folder.path, arguments.json)
    if not outcome.saved:
        say(f"dovetail: the last save failed; {folder.path}/checkpoints holds the one before it.")
        return 1
    return _STOPPED if outcome.stopped_by else 0


def _refuse_elsewhere(machine: Machine | None) -> None:
    """Raises a ConfigError where this is not the machine that the experiment was fitted to."""
    if machine is not None and (difference := difference_here(machine)) is not None:
        raise ConfigError(
            f"--target {machine.name}: this is not that machine: {difference}. Run it there; "
            "--dry-run tells here what would happen, and without --target it trains here."
        )


def _dry_run(chosen: Chosen, as_json: bool) -> int:
    """Compiles the step where the machine is here; elsewhere tells what can be told without."""
    from dovetail.cli.dry_run import dry_run, dry_run_elsewhere

    if chosen.machine is None or difference_here(chosen.machine) is None:
        return dry_run(chosen.config, as_json)
    for report in chosen.reports:
        say(report)
    return dry_run_elsewhere(chosen.config, chosen.machine, as_json)


def _train(
    trainer: Trainer,
    folder: RunFolder,
    debug_nans: bool,
    steps: range | None,
    stop: StopRequest,
    tell: Callable[[str], None],
) -> Outcome | None:
    """Trains, and profiles the chosen steps. None: a figure was not finite, which was said."""
    from dovetail.trainer import Hooks, NonFiniteError

    profiler = Profiler(folder.path, steps, tell) if steps is not None else None
    around = profiler.around_step if profiler is not None else None
    try:
        return trainer.train(folder.path, Hooks(tell, debug_nans, around), stop)
    except NonFiniteError as error:
        tell(f"dovetail: {error}")
        return None
    finally:
        if profiler is not None:
            profiler.finish()


def _data(trainer: Trainer) -> str:
    """Names the prepared data that the run is trained on; it stands for their content."""
    return trainer.input.prepare().folder.name


def _keep_quiet(line: str) -> None:
    """Takes a line that another process prints."""


def _report(outcome: Outcome, folder: Path, as_json: bool, closing: str | None = None) -> None:
    """Prints how the run ended."""
    from dovetail.cli.summary import summary

    if not as_json:
        print(summary(outcome, folder, closing))
        return
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


def _report_complete(
    steps: int, saved: int, folder: Path, arguments: argparse.Namespace, process_index: int
) -> int:
    """Tells about a run that was extended before, and so has had all steps asked for and more."""
    from dovetail.cli.summary import recorded

    if process_index == 0:
        closing = (
            f"complete: the run in {folder} is at step {saved}, past the {steps} asked for; "
            f"--steps with more than {saved} goes on with it"
        )
        _report(recorded(saved, folder), folder, arguments.json, closing)
    return 0
