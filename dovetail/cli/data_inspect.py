"""`data inspect`: what a model is trained on. Statistics of the data, decoded rows, and documents.

  dovetail data inspect tiny-lm
  dovetail data inspect tiny-lm --data notes/ --rows 5
  dovetail data inspect runs/tiny-lm --step 120

On a terminal, text without loss is dim. Elsewhere, brackets ⟦ ⟧ enclose it.
"""

from __future__ import annotations

import argparse
import os
import sys
from typing import TYPE_CHECKING

from dovetail.cli.experiment import add_experiment_arguments, load_experiment
from dovetail.cli.output import check_number, naming_options, print_json

if TYPE_CHECKING:
    from dovetail.data import DataInspection

_SAMPLES = 2
_STYLES = {
    "text": "",
    "masked": "dim",
    "special": "magenta",
    "masked special": "dim magenta",
    "border": "bold cyan",
    "padding": "yellow",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the action's arguments."""
    add_experiment_arguments(parser)
    parser.add_argument(
        "--step", type=int, metavar="N", help="show which documents the batch of this step holds"
    )
    parser.add_argument(
        "--rows", type=int, metavar="K", help=f"show so many rows ({_SAMPLES}; with --step, all)"
    )
    parser.add_argument(
        "--text", action="store_true", help="with --step: show the rows decoded, not as a table"
    )
    parser.add_argument(
        "--split", choices=("train", "held_out"), default="train", help="the split (train)"
    )
    parser.set_defaults(handler=run)


def run(arguments: argparse.Namespace) -> int:
    """Inspects the data, and prints it."""
    check_number("--step", arguments.step, 0)
    check_number("--rows", arguments.rows, 0)
    found = _inspect(arguments)
    if arguments.json:
        print_json(found.facts())
    elif arguments.step is None:
        _print_samples(found, with_overview=True)
    elif arguments.text:
        _print_samples(found, with_overview=False)
    else:
        print(found.documents_report())
    return 0


def _inspect(arguments: argparse.Namespace) -> DataInspection:
    experiment, rows = load_experiment(arguments), arguments.rows
    if rows is None and arguments.step is None:
        rows = _SAMPLES
    with naming_options({"step": "--step", "rows": "--rows"}):
        return experiment.inspect_data(
            step=arguments.step or 0,
            rows=rows,
            split=arguments.split,
            progress=not arguments.json,
        )


def _print_samples(found: DataInspection, *, with_overview: bool) -> None:
    from dovetail.data.inspection.report import overview, plain, samples

    if not _has_colour():
        print(found.report() if with_overview else plain(samples(found)))
        return
    if with_overview:
        print(overview(found), end="\n\n")
    from rich.console import Console
    from rich.text import Text

    pairs = [(segment.text, _STYLES[segment.kind]) for segment in samples(found)]
    Console().print(Text.assemble(*pairs), highlight=False, soft_wrap=True, end="")


def _has_colour() -> bool:
    return (
        sys.stdout.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
    )
