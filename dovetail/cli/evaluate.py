"""Evaluate a trained model: metrics of the run's evaluators, on its newest parameters.

dovetail evaluate runs/tiny-lm
dovetail evaluate runs/tiny-lm held_out --json
"""

from __future__ import annotations

import argparse
from pathlib import Path

from dovetail.cli.experiment import add_import_argument
from dovetail.cli.output import format_metrics, print_json
from dovetail.config import ConfigError
from dovetail.utils import Progress


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the verb's arguments."""
    parser.add_argument(
        "run_folder", type=Path, metavar="RUN", help="a run folder, such as runs/tiny-lm"
    )
    parser.add_argument(
        "tasks", nargs="*", metavar="EVALUATOR", help="such as held_out; all if none is named"
    )
    add_import_argument(parser)
    parser.add_argument("--json", action="store_true", help="print one JSON object when done")
    parser.set_defaults(handler=run)


def run(arguments: argparse.Namespace) -> int:
    """Evaluates."""
    with Progress(str(arguments.run_folder), enabled=not arguments.json) as progress:
        progress.stage("loading the model")
        from dovetail.run import Run, run_path

        run = Run(run_path(arguments.run_folder), imports=arguments.imports)
        if not run.config.evaluators:
            raise ConfigError(
                f"{run.path}: this run has no evaluators. Train it with one, such as "
                "evaluators.held_out=HeldOutLoss; a run may be continued with other evaluators."
            )
        step = run.step  # loads the parameters
        progress.stage("evaluating")
        metrics = run.evaluate(arguments.tasks or None)
    if arguments.json:
        print_json({"run": str(run.path), "step": step, "metrics": metrics})
    else:
        print(format_metrics(metrics))
    return 0
