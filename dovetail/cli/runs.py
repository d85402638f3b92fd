"""List runs, or delete some.

dovetail runs                      all runs below runs/, the newest first
dovetail runs moe stopped          those that match all words
dovetail runs --delete tiny-lm,peak=0.003
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from dovetail.cli.output import print_json, say
from dovetail.config import ConfigError
from dovetail.utils import Progress, format_duration, format_table, plural

if TYPE_CHECKING:
    from dovetail.run.listing import RunSummary

_HEADER = ("run", "changes", "state", "step", "loss", "age")
_MAX_CHANGES = 48  # characters of a line


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the verb's arguments."""
    parser.add_argument(
        "words", nargs="*", metavar="WORD", help="list only runs that match: a name, a state"
    )
    parser.add_argument(
        "--in", dest="folder", type=Path, default=Path("runs"), help="the folder of runs (runs)"
    )
    parser.add_argument(
        "--delete", action="store_true", help="delete the runs that the WORDs name exactly"
    )
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.set_defaults(handler=run)


def run(arguments: argparse.Namespace) -> int:
    """Lists or deletes runs."""
    with Progress(str(arguments.folder), enabled=not arguments.json) as progress:
        progress.stage("reading")
        from dovetail.run import delete_run, list_runs, listed_run
    if arguments.delete:
        if not arguments.words:
            raise ConfigError("--delete: name the runs to delete. `dovetail runs` lists them.")
        for path in [listed_run(name, arguments.folder) for name in arguments.words]:
            delete_run(path)
            say(f"deleted {path}")
        return 0
    found = list_runs(arguments.folder, arguments.words)
    if arguments.json:
        print_json([asdict(each) for each in found])
        return 0
    if not found:
        filtered = f" that match {' '.join(arguments.words)!r}" if arguments.words else ""
        say(f"There are no runs{filtered} in {arguments.folder}. `dovetail train` makes one.")
        return 0
    print(format_table(_rows(found), header=_HEADER, align="<<<>>>"))
    for each in found:
        if each.problem:
            say(f"{each.path}: {each.problem}")
    say(f"{plural(len(found), 'run')} in {arguments.folder}")
    return 0


def _rows(runs: list[RunSummary]) -> list[tuple[str, ...]]:
    """Returns the cells of all runs; what only few of them change comes first."""
    common = Counter(change for each in runs for change in each.changes)
    return [_row(each, sorted(each.changes, key=lambda change: common[change])) for each in runs]


def _row(found: RunSummary, changed: list[str]) -> tuple[str, ...]:
    changes = " ".join(map(_short, changed))
    if len(changes) > _MAX_CHANGES and sys.stdout.isatty():
        changes = f"{changes[: _MAX_CHANGES - 3]}..."
    steps = f"{found.step:,}" if found.steps is None else f"{found.step:,}/{found.steps:,}"
    loss = "" if found.loss is None else f"{found.loss:.3f}"
    return found.path.name, changes, found.state, steps, loss, format_duration(round(found.age_s))


def _short(change: str) -> str:
    """Returns `peak=0.003` for `learner.schedule.peak=0.003`."""
    key, equals, value = change.partition("=")
    return key.rpartition(".")[2] + equals + value
