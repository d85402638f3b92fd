"""Inject faults into real training, and compare it with an undisturbed run.

Each trial trains a tiny model under the supervisor while one fault strikes: a kill at a named
point, a hang, a full disk, a damaged checkpoint, a signal. It is good if the run finishes by itself
with the same losses and the same final state, bit for bit.

  dovetail chaos
  dovetail chaos --trials 300 --seed 7
  dovetail chaos --kinds "flipped bit,kill"
"""

from __future__ import annotations

import argparse
import dataclasses
import tempfile
from pathlib import Path

from dovetail.cli.output import print_json, say
from dovetail.config import ConfigError, did_you_mean
from dovetail.utils import Progress, format_duration, format_table


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the verb's arguments."""
    parser.add_argument(
        "--trials", type=int, metavar="N", help="the long form: every kind at every point, up to N"
    )
    parser.add_argument("--seed", type=int, default=0, help="repeats the same trials (default 0)")
    parser.add_argument("--kinds", metavar="KIND,...", help="only these kinds of faults")
    parser.add_argument("--json", action="store_true", help="print the results as JSON")
    parser.set_defaults(handler=run)


def run(arguments: argparse.Namespace) -> int:
    """Runs the trials; the exit code is 1 if one was not survived."""
    from dovetail.runtime.chaos import KINDS, Chaos, long_trials, short_trials

    trials = short_trials(arguments.seed)
    if arguments.trials is not None:
        if arguments.trials < 1:
            raise ConfigError(f"--trials: expected 1 or more, got {arguments.trials}.")
        trials = long_trials(arguments.seed, arguments.trials)
    if arguments.kinds:
        wanted = [kind.strip() for kind in arguments.kinds.split(",")]
        for kind in wanted:
            if kind not in KINDS:
                raise ConfigError(f"--kinds: there is no {kind!r}. {did_you_mean(kind, KINDS)}")
        trials = [trial for trial in trials if trial.kind in wanted]
    results = []
    with tempfile.TemporaryDirectory(prefix="dovetail-chaos-") as scratch:
        chaos = Chaos(Path(scratch))
        with Progress("chaos", enabled=not arguments.json) as progress:
            for index, trial in enumerate(trials, 1):
                progress.stage(f"{index} of {len(trials)}: {trial}")
                results.append(chaos.run(trial))
                if results[-1].problem is not None and not arguments.json:
                    progress.say(f"NOT SURVIVED: {trial}: {results[-1].problem}")
    bad = [result for result in results if result.problem is not None or not result.injected]
    if arguments.json:
        print_json([dataclasses.asdict(result) for result in results])
    else:
        rows = [
            [
                str(result.trial),
                "yes" if result.injected else "NO",
                result.problem or "the same",
                str(result.lives),
                str(result.repeated),
                format_duration(result.seconds),
            ]
            for result in results
        ]
        head = ["fault", "injected", "outcome", "lives", "repeated steps", "time"]
        say(format_table(rows, header=head))
        survived = len(results) - len(bad)
        say(f"{survived} of {len(results)} faults survived without loss (seed {arguments.seed})")
    return 1 if bad else 0
