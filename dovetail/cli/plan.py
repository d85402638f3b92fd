"""Predict memory, step time and cost on a machine, with its real compiler and no device.

dovetail plan llama2-7b --target tpu-v5p-512
dovetail plan llama2-7b --target tpu-v5p-512 --search
dovetail plan llama2-7b --targets all --by cost
dovetail plan verify runs/tiny-lm
"""

from __future__ import annotations

import argparse
import gc
import re
import shlex
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from dovetail.cli.experiment import (
    add_experiment_arguments,
    choose,
)
from dovetail.cli.output import check_file, check_number, print_json, say
from dovetail.config import ConfigError
from dovetail.hardware import MFU_FORMULA
from dovetail.targets import default_to_cpu
from dovetail.utils import Progress, plural

if TYPE_CHECKING:
    from dovetail.api import Experiment
    from dovetail.plan import Plan, Planner, RankedPlan


_VERIFY = "verify"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the verb's arguments."""
    add_experiment_arguments(parser)
    parser.epilog = textwrap.fill(f"{MFU_FORMULA}.", 80)
    parser.add_argument(
        "--analytic", action="store_true", help="estimate by arithmetic; compile nothing"
    )
    parser.add_argument(
        "--search",
        action="store_true",
        help="find the best mesh, remat, gradient accumulation and offloading for the machine",
    )
    parser.add_argument(
        "--write", type=Path, metavar="FILE.py", help="save what --search finds as a target's rule"
    )
    parser.add_argument(
        "--targets",
        metavar="all|NAME,NAME",
        help="compare machines by arithmetic: all of the catalogue, or those that are named",
    )
    parser.add_argument(
        "--by", choices=("time", "cost", "chips"), default="cost", help="how --targets sorts (cost)"
    )
    parser.add_argument(
        "--chips", type=int, default=256, help="how many chips a machine of --targets all has (256)"
    )
    parser.add_argument("--html", type=Path, metavar="FILE", help="write an HTML page")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.set_defaults(handler=_plan)


def _plan(arguments: argparse.Namespace) -> int:
    _check(arguments)
    if arguments.targets is not None:
        return _compare(arguments)
    if arguments.experiment == _VERIFY:
        return _verify(arguments)
    if arguments.search:
        return _search(arguments)
    with _without_pauses():
        with Progress(arguments.experiment, enabled=not arguments.json) as progress:
            progress.stage("loading")
            chosen, planner = _chosen(arguments)
            progress.stage("tracing the model")
            planner.check()
        _print_first(planner, chosen)
    plan = _final_plan(planner, arguments.json)
    if not arguments.json:
        print(plan.report())
    fitting = _remedies(planner, arguments.json) if not plan.fits else []
    if arguments.json:
        remedies = {} if plan.fits else {"remedies": [each.facts() for each in fitting]}
        print_json(plan.facts() | remedies)
    elif not plan.fits:
        from dovetail.plan.report import remedies_report

        print(f"\n{remedies_report(plan, fitting)}")
    if arguments.html is not None:
        arguments.html.write_text(plan.page(fitting), encoding="utf-8")
        say(f"wrote {arguments.html}")
    return 0


@contextmanager
def _without_pauses() -> Iterator[None]:
    """Disables garbage collection, which takes a tenth of the time to a plan's first line.

    It is a setting of the process, so only the command, which owns the process, may change it.
    """
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def _chosen(arguments: argparse.Namespace) -> tuple[Experiment, Planner]:
    default_to_cpu()
    chosen = choose(arguments)
    if chosen.machine is None:
        raise ConfigError(
            "plan: for which machine? Pass --target, such as --target tpu-v5p-512 or --target cpu; "
            "`dovetail config targets` lists them."
        )
    return chosen, chosen.planner(compile=not arguments.analytic)


def _check(arguments: argparse.Namespace) -> None:
    """Raises a ConfigError for options that exclude each other, before any work is done."""
    if arguments.html is not None and (
        arguments.search or arguments.targets is not None or arguments.experiment == _VERIFY
    ):
        raise ConfigError("--html draws one plan: leave out --search, --targets and verify.")
    if arguments.experiment == _VERIFY and (
        arguments.search or arguments.analytic or arguments.modifiers or arguments.data
    ):
        raise ConfigError(
            "plan verify takes a run as it was trained: leave out the options of a plan."
        )
    for flag, file in (("--html", arguments.html), ("--write", arguments.write)):
        if file is not None:
            check_file(flag, file)
    if arguments.write is not None and not arguments.search:
        raise ConfigError("--write saves what --search finds; pass both.")
    if arguments.write is not None and not re.fullmatch(r"[A-Za-z_]\w*\.py", arguments.write.name):
        raise ConfigError(
            f"--write {arguments.write}: expected a name that Python can import, such as found.py."
        )


def _compare(arguments: argparse.Namespace) -> int:
    if arguments.target is not None or arguments.search or arguments.experiment == _VERIFY:
        raise ConfigError("--targets compares machines: leave --target, --search and verify out.")
    check_number("--chips", arguments.chips, 1, 2**20)
    names = [name for name in arguments.targets.split(",") if name.strip()]
    if not names:
        raise ConfigError(
            f"--targets {arguments.targets!r} names no machine. Pass `all`, or names such as "
            "tpu-v5p-512,gpu-h100-256."
        )
    default_to_cpu()
    with Progress("planning", enabled=not arguments.json) as progress:
        progress.stage("loading")
        chosen = choose(arguments)
        from dovetail.plan import SORT_KEYS, TargetComparison

        compared = TargetComparison(chosen.name, chosen.config)
        rows = []
        is_all = arguments.targets == "all"
        for row in compared.catalogue(arguments.chips) if is_all else compared.named(names):
            progress.stage(row.machine.name)
            rows.append(row)
    rows.sort(key=SORT_KEYS[arguments.by])
    if arguments.json:
        print_json([row.facts() for row in rows])
    else:
        print(compared.report(rows, arguments.by))
    return 0


def _verify(arguments: argparse.Namespace) -> int:
    from dovetail.plan import VerificationHistory, run_planner, verify
    from dovetail.run import Run, run_path

    if len(arguments.overrides) != 1:
        raise ConfigError("plan verify: name one run folder, such as runs/tiny-lm.")
    default_to_cpu()
    run = Run(run_path(arguments.overrides[0]), imports=arguments.imports)
    planner = run_planner(run, arguments.target)
    with Progress(f"compiling for {planner.machine}", enabled=not arguments.json):
        verified = verify(run, planner)
    VerificationHistory().add(verified)
    if arguments.json:
        print_json(verified.facts())
    else:
        print(verified.report())
    return 0


def _remedies(planner: Planner, as_json: bool) -> list[RankedPlan]:
    """Returns the nearest changes that fit."""
    from dovetail.plan import remedies

    with Progress("looking for changes that fit", enabled=not as_json) as progress:
        planner.on_progress = progress.stage
        return remedies(planner)


def _search(arguments: argparse.Namespace) -> int:
    with Progress(arguments.experiment, enabled=not arguments.json) as progress:
        progress.stage("loading")
        chosen, planner = _chosen(arguments)
    from dovetail.plan import configured_candidate, rule_source, search

    for report in chosen.reports:
        say(report)
    if planner.compile_obstacle:
        say(f"analytic alone: {planner.compile_obstacle}")
    with Progress("searching", enabled=not arguments.json) as progress:
        planner.on_progress = progress.stage
        result = search(planner)
    if arguments.json:
        print_json(result.facts())
    else:
        print(result.report())
    if result.best is None or result.is_rule_best:
        if arguments.write is not None:
            why = "nothing was found that fits" if result.best is None else "the rule is the best"
            say(f"{arguments.write} was not written: {why}")
        return 0
    text = rule_source(chosen.name, planner.machine, result.best.candidate)
    if arguments.write is not None:
        arguments.write.write_text(text, encoding="utf-8")
        say(
            f"wrote {arguments.write}, a rule for every experiment on {planner.machine.kind}: from "
            f"its folder, use it with --import {arguments.write.stem}"
        )
    elif not arguments.json:
        rule = configured_candidate(planner.config, planner.machine)
        options = shlex.join(result.best.candidate.arguments(rule))
        print(f"\nto paste: --target {planner.machine.name} {options}")
        print(f"\nas a rule of your own (--write FILE.py saves it):\n\n{text}")
    return 0


def _print_first(planner: Planner, chosen: Experiment) -> None:
    """Prints the analytic plan in one line, and the ratio of verified runs."""
    from dovetail.plan import VerificationHistory

    for report in chosen.reports:
        say(report)
    say(planner.analytic_plan().summary())
    if (verified := VerificationHistory().time(planner.machine.chip.name)) is not None:
        ratio, runs = verified
        many = plural(runs, "verified run")
        say(f"on this chip {many} took {ratio:.2f} times as long as predicted; it is not applied")


def _final_plan(planner: Planner, as_json: bool) -> Plan:
    """Returns the best plan, and says why nothing is compiled."""
    obstacle = planner.compile_obstacle
    if obstacle:
        say(f"analytic alone: {obstacle}")
    with Progress(f"compiling for {planner.machine}", enabled=not (as_json or obstacle)):
        return planner.best_plan()
