"""Train an experiment, or continue a run.

Ctrl-C or SIGTERM finishes the step, saves and exits with code 75; the same command then continues.

  dovetail train tiny-lm
  dovetail train tiny-lm model.decoder.stack.num_layers=6 --steps 200
"""

from __future__ import annotations

import argparse
import os
import textwrap
from pathlib import Path
from typing import TYPE_CHECKING

from dovetail.api import Experiment, refuse_elsewhere
from dovetail.cli.experiment import add_experiment_arguments, choose
from dovetail.cli.output import check_folder, print_json, say
from dovetail.cli.train_profile import Profiler, check_range, profile_range
from dovetail.hardware import MFU_FORMULA
from dovetail.targets import create_virtual_devices, local_mismatch
from dovetail.utils import Progress

if TYPE_CHECKING:
    from dovetail.runtime import RunFolder
    from dovetail.trainer import Outcome, Trainer

_STOPPED = 75


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the verb's arguments."""
    add_experiment_arguments(parser)
    mfu = f"{MFU_FORMULA}. The peak of a CPU is its own measured rate of matrix products."
    parser.epilog = textwrap.fill(mfu, 80)
    parser.add_argument("--run", type=Path, metavar="FOLDER", help="default: runs/<experiment>")
    parser.add_argument(
        "--dry-run",
        action="store_true",
        help="check everything and compile the step; train nothing",
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
    profiled = profile_range(arguments.profile)
    if arguments.run is not None:
        check_folder("--run", arguments.run)
    with Progress(arguments.experiment, enabled=not arguments.json and not _index()) as progress:
        progress.stage("loading")
        chosen = choose(arguments)
        if profiled is not None:
            check_range(profiled, 0, chosen.config.steps)
        from dovetail.parallel import start_distributed
        from dovetail.run.training import open_trainer
        from dovetail.runtime import RunFolder, use_compilation_cache

        use_compilation_cache()
        create_virtual_devices(chosen.machine)
        process = start_distributed()
        folder = RunFolder(arguments.run or chosen.folder)
        if arguments.dry_run:
            folder.check_identity(chosen.config)
            return _dry_run(chosen, folder.path, arguments.json, progress)
        refuse_elsewhere(chosen.machine)
        trainer = open_trainer(chosen.config, folder, progress.say)
        saved = trainer.saved_step(folder.path)
        if saved > trainer.steps:
            progress.close()
            return _report_complete(trainer.steps, saved, folder.path, arguments, process.index)
        if profiled is not None:
            check_range(profiled, saved, trainer.steps)
        progress.stage("tracing the step")
        trainer.program().check()
    outcome = _train(trainer, chosen, folder, arguments, profiled)
    if isinstance(outcome, int):
        return outcome
    if process.index == 0:
        _report(outcome, folder.path, arguments.json)
    if not outcome.saved:
        say(f"dovetail: the last save failed; {folder.path}/checkpoints holds the one before it.")
        return 1
    if bad := [k for k, v in outcome.metrics.items() if isinstance(v, float) and v != v]:
        say(f"dovetail: after the last step, {bad[0]} is not a number. Lower the learning rate.")
        return 1
    return _STOPPED if outcome.stopped_by else 0


def _index() -> int:
    """Returns the index of this process as the environment gives it, before JAX starts."""
    names = ("DOVETAIL_PROCESS", "SLURM_PROCID", "OMPI_COMM_WORLD_RANK")
    texts = (os.environ.get(name, "") for name in names)
    return next((int(text) for text in texts if text.isdecimal()), 0)


def _dry_run(chosen: Experiment, folder: Path, as_json: bool, progress: Progress) -> int:
    """Compiles the step if this is the machine; otherwise compiles nothing."""
    from dovetail.cli.train_dry_run import dry_run, dry_run_elsewhere

    check_folder("--run", folder)
    if chosen.machine is None or local_mismatch(chosen.machine) is None:
        return dry_run(chosen.config, folder, as_json, progress)
    for report in chosen.reports:
        progress.say(report)
    return dry_run_elsewhere(chosen.config, chosen.machine, as_json, progress)


def _train(
    trainer: Trainer,
    chosen: Experiment,
    folder: RunFolder,
    arguments: argparse.Namespace,
    profiled: range | None,
) -> Outcome | int:
    """Trains, and profiles the chosen steps; returns an exit code if that did not work."""
    from dovetail.parallel import start_distributed
    from dovetail.run import Interrupted, train_run
    from dovetail.trainer import FaultError, Hooks

    log = say if start_distributed().index == 0 else _keep_quiet  # one process writes and logs
    profiler = Profiler(folder.path, profiled, log) if profiled is not None else None
    around = profiler.around_step if profiler is not None else None
    hooks = Hooks(log, arguments.debug_nans, around)
    try:
        return train_run(trainer, folder, chosen.about(), reports=chosen.reports, hooks=hooks)
    except Interrupted as error:
        log(f"dovetail: {error}; nothing is written")
        return _STOPPED
    except FaultError as error:
        log(f"dovetail: {error}")
        return 1
    finally:
        if profiler is not None:
            profiler.finish()


def _keep_quiet(line: str) -> None:
    """Drops a line that another process prints."""


def _report(outcome: Outcome, folder: Path, as_json: bool, closing: str | None = None) -> None:
    """Prints how the run ended."""
    from dovetail.cli.train_summary import summary

    if not as_json:
        print(summary(outcome, folder, closing))
        return
    numbers = {k: v for k, v in outcome.metrics.items() if not isinstance(v, str)}
    print_json(
        {
            "run": str(folder),
            "step": outcome.step,
            "stopped_by": outcome.stopped_by,
            "saved": outcome.saved,
            "seconds": round(outcome.seconds, 2),
            "metrics": numbers,
        }
    )


def _report_complete(
    steps: int, saved: int, folder: Path, arguments: argparse.Namespace, process_index: int
) -> int:
    """Reports a run that is already past the requested number of steps."""
    from dovetail.cli.train_summary import recorded

    if process_index == 0:
        closing = (
            f"complete: the run in {folder} is at step {saved}, past the {steps} asked for; "
            f"continue it with --steps of more than {saved}"
        )
        _report(recorded(saved, folder), folder, arguments.json, closing)
    return 0
