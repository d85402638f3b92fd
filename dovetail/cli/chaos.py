"""Inject faults into real training, and compare it with an undisturbed run.

Each trial trains a tiny model under the supervisor while one fault strikes: a kill at a named
point, a hang, a full disk, a damaged checkpoint, a signal. It is good if the run finishes by itself
with the same losses and the same final state, bit for bit.

  dovetail chaos
  dovetail chaos --trials 300 --seed 7 --results chaos.jsonl
  dovetail chaos --kinds "flipped bit,kill"
  dovetail chaos --control "no digest"
"""

from __future__ import annotations

import argparse
import dataclasses
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from dovetail.cli.output import print_json
from dovetail.config import ConfigError
from dovetail.utils import Progress

if TYPE_CHECKING:
    from dovetail.runtime.chaos import Trial


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the verb's arguments."""
    parser.add_argument(
        "--trials", type=int, metavar="N", help="the long form: every kind at every point, up to N"
    )
    parser.add_argument("--seed", type=int, default=0, help="repeats the same trials (default 0)")
    parser.add_argument("--kinds", metavar="KIND,...", help="only these kinds of faults")
    parser.add_argument(
        "--control",
        metavar="NAME",
        help="break the runtime on purpose (such as 'no digest'): the trial must fail",
    )
    parser.add_argument(
        "--results",
        type=Path,
        metavar="FILE",
        help="add each result to this file, and do not repeat the trials that it has",
    )
    parser.add_argument(
        "--points", action="store_true", help="print a row for each kind and point, with seeds"
    )
    parser.add_argument("--json", action="store_true", help="print the results as JSON")
    parser.set_defaults(handler=run)


def run(arguments: argparse.Namespace) -> int:
    """Runs the trials; the exit code is 1 if one was not survived."""
    from dovetail.runtime.chaos import Chaos, ResultsFile, report

    trials = _trials(arguments)
    file = None if arguments.results is None else ResultsFile(arguments.results)
    results = [] if file is None else file.of(trials)
    done = {result.trial for result in results}
    trials = [trial for trial in trials if trial not in done]
    with tempfile.TemporaryDirectory(prefix="dovetail-chaos-") as scratch:
        chaos = Chaos(Path(scratch), arguments.control)
        with Progress("chaos", enabled=not arguments.json) as progress:
            for index, trial in enumerate(trials, 1):
                progress.stage(f"{index} of {len(trials)}: {trial}")
                results.append(chaos.run(trial))
                if file is not None:
                    file.add(results[-1])
                if results[-1].problem is not None and not arguments.json:
                    progress.say(f"NOT SURVIVED: {trial}: {results[-1].problem}")
    if arguments.json:
        print_json([dataclasses.asdict(result) for result in results])
    else:
        print(report.as_text(results, arguments.seed, with_points=arguments.points))
    return 1 if any(result.problem or not result.injected for result in results) else 0


def _trials(arguments: argparse.Namespace) -> list[Trial]:
    """Returns the trials that are asked for."""
    from dovetail.runtime.chaos import select_trials

    kinds = [kind.strip() for kind in arguments.kinds.split(",")] if arguments.kinds else []
    trials = select_trials(
        arguments.seed, count=arguments.trials, kinds=kinds, control=arguments.control
    )
    if arguments.control is not None and arguments.results is not None:
        raise ConfigError("--results: leave it out with --control, whose trials must fail.")
    return trials
