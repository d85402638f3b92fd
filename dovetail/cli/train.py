"""Train an experiment, or continue a run.

Ctrl-C or SIGTERM finishes the step, saves and exits with code 75; the same command then continues.

  dovetail train tiny-lm
  dovetail train tiny-lm model.decoder.stack.num_layers=6 --steps 200
  dovetail train runs/tiny-lm --steps 400
"""

from __future__ import annotations

import argparse
import textwrap
from pathlib import Path
from typing import TYPE_CHECKING

from dovetail.api import Experiment
from dovetail.cli.experiment import add_experiment_arguments, choose
from dovetail.cli.output import check_folder, print_json, say
from dovetail.cli.supervise import add_supervisor_arguments, check_supervised, supervise
from dovetail.config import ConfigError
from dovetail.hardware import MFU_FORMULA
from dovetail.runtime.heartbeat import is_worker
from dovetail.runtime.supervisor.spares import wait_until_needed
from dovetail.utils import Progress, launched_index

if TYPE_CHECKING:
    from dovetail.run import PreparedRun
    from dovetail.trainer import Outcome

_STOPPED = 75


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the verb's arguments."""
    add_experiment_arguments(parser)
    mfu = f"{MFU_FORMULA}. The peak of a CPU is its own measured rate of matrix products."
    parser.epilog = textwrap.fill(mfu, 80)
    parser.add_argument(
        "--run",
        type=Path,
        metavar="FOLDER",
        help="default: in runs/, named after the experiment and its changes",
    )
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
    add_supervisor_arguments(parser)
    parser.set_defaults(handler=run)


def run(arguments: argparse.Namespace) -> int:
    """Trains."""
    arguments.started = wait_until_needed() or arguments.started
    check_supervised(arguments)
    if arguments.supervise and not is_worker():
        return supervise(arguments)
    profiled = profile_range(arguments.profile)
    if arguments.run is not None:
        check_folder("--run", arguments.run)
    with Progress(
        arguments.experiment, enabled=not arguments.json and not launched_index()
    ) as progress:
        progress.stage("loading")
        chosen = choose(arguments)
        if arguments.dry_run:
            return _dry_run(chosen, arguments, progress, profiled)
        prepared = chosen.prepare(progress, folder=arguments.run, profile=profiled)
    if prepared.is_complete:
        return _report_complete(prepared, arguments)
    outcome = _train(prepared, chosen, arguments)
    if isinstance(outcome, int):
        return outcome
    folder = prepared.folder.path
    if prepared.process.index == 0:
        _report(outcome, folder, arguments.json)
    if (problem := outcome.problem(folder)) is not None:
        say(f"dovetail: {problem}")
        return 1
    return _STOPPED if outcome.stopped_by else 0


def profile_range(text: str | None) -> range | None:
    """Parses the FIRST:END of `--profile`."""
    if text is None:
        return None
    first, colon, end = text.partition(":")
    if not (colon and first.isdigit() and end.isdigit() and int(first) < int(end)):
        raise ConfigError(f"--profile: expected FIRST:END, such as 10:13, got {text!r}.")
    return range(int(first), int(end))


def _dry_run(
    chosen: Experiment, arguments: argparse.Namespace, progress: Progress, profiled: range | None
) -> int:
    from dovetail.cli.train_dry_run import print_dry_run
    from dovetail.run import RemoteDryRun, check_profile

    check_profile(profiled, 0, chosen.config.steps)
    check_folder("--run", arguments.run or chosen.folder)
    found = chosen.dry_run(folder=arguments.run, on_progress=progress.stage)
    if isinstance(found, RemoteDryRun):
        for report in chosen.reports:
            progress.say(report)
    progress.close()
    print_dry_run(found, arguments.json)
    return 0


def _train(
    prepared: PreparedRun, chosen: Experiment, arguments: argparse.Namespace
) -> Outcome | int:
    """Trains, and profiles the chosen steps; returns an exit code if that did not work."""
    from dovetail.parallel import leave_distributed
    from dovetail.run import Interrupted
    from dovetail.trainer import FaultError, Hooks

    log = say if prepared.process.index == 0 else _keep_quiet  # one process writes and logs
    hooks = Hooks(log, arguments.debug_nans, started=arguments.started)
    try:
        return prepared.train(chosen.about(), reports=chosen.reports, hooks=hooks)
    except Interrupted as error:
        log(f"dovetail: {error}")
        leave_distributed()
        return _STOPPED
    except FaultError as error:
        log(f"dovetail: {error}")
        return 1


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


def _report_complete(prepared: PreparedRun, arguments: argparse.Namespace) -> int:
    """Reports a run that is already past the requested number of steps."""
    if prepared.process.index == 0:
        folder, saved = prepared.folder.path, prepared.saved_step
        closing = (
            f"complete: the run in {folder} is at step {saved}, past the "
            f"{prepared.trainer.steps} asked for; continue it with --steps of more than {saved}"
        )
        _report(prepared.recorded_outcome(), folder, arguments.json, closing)
    return 0
