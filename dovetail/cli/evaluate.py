"""Evaluate a trained model: metrics of the run's evaluators, or of tasks, on its newest parameters.

dovetail evaluate runs/tiny-lm
dovetail evaluate runs/tiny-lm held_out --json
dovetail evaluate runs/tiny-lm arithmetic
"""

from __future__ import annotations

import argparse
from pathlib import Path

from dovetail.cli.experiment import add_import_argument
from dovetail.cli.output import format_metrics, print_json
from dovetail.utils import Progress


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the verb's arguments."""
    parser.add_argument(
        "run_folder", type=Path, metavar="RUN", help="a run folder, such as runs/tiny-lm"
    )
    parser.add_argument(
        "tasks",
        nargs="*",
        metavar="TASK",
        help="an evaluator of the run, such as held_out, or a task, such as arithmetic; without "
        "any, all evaluators of the run",
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
        tasks = arguments.tasks or None
        run.evaluators(tasks)  # a mistake is an error before the parameters are loaded
        step = run.step
        progress.stage("evaluating")
        metrics = run.evaluate(tasks)
    if arguments.json:
        print_json({"run": str(run.path), "step": step, "metrics": metrics})
    else:
        print(format_metrics(metrics))
    return 0
