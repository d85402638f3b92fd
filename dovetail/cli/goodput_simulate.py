"""`dovetail goodput simulate`, and its options."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dovetail.cli.output import check_number, print_json
from dovetail.config import ConfigError

if TYPE_CHECKING:
    from dovetail.runtime.goodput.simulate import Scenario

SIMULATE = "simulate"


def _rate(text: str) -> float:
    """Returns a rate of failures: a number, or that of a published cluster."""
    from dovetail.runtime.goodput.simulate import RATES

    try:
        return RATES[text] if text in RATES else float(text)
    except ValueError:
        names = ", ".join(RATES)
        message = f"expected a number or one of {names}, got {text!r}"
        raise argparse.ArgumentTypeError(message) from None


# Option: (field of the scenario, type, help). `local.stall` is a field of a tier.
_OPTIONS: dict[str, tuple[str, Callable[[str], float], str]] = {
    "--hosts": ("hosts", int, "hosts of the job (2048)"),
    "--rate": (
        "rate",
        _rate,
        "failures per 1,000 host-days (3.8): a number, or llama3, rsc-1, ...",
    ),
    "--job-failures": ("job_failures_per_day", float, "failures per day of the job as such (0)"),
    "--detect": ("detect", float, "seconds to notice a crash (15)"),
    "--detect-hang": ("detect_hang", float, "seconds to notice a hang (300)"),
    "--start": ("start", float, "seconds to start and compile (120)"),
    "--spare-start": ("spare_start", float, "the same with a warm spare (45)"),
    "--spares": ("spares", int, "hosts that wait (8)"),
    "--replacement": ("replacement", float, "seconds to get a host without a spare (600)"),
    "--repair": ("repair", float, "seconds until a lost host is a spare again (14400)"),
    "--interval": ("local.interval", float, "seconds between saves to the local tier (60)"),
    "--stall": ("local.stall", float, "seconds that such a save stalls training (0.3)"),
    "--write": ("local.write", float, "seconds until it is written (5)"),
    "--restore": ("local.restore", float, "seconds to restore it (30)"),
    "--durable-interval": ("durable.interval", float, "the same for the durable tier (1200)"),
    "--durable-stall": ("durable.stall", float, "(0.5)"),
    "--durable-write": ("durable.write", float, "(120)"),
    "--durable-restore": ("durable.restore", float, "(300)"),
    "--durable-share": ("durable_share", float, "failures that destroy the local tier (0.02)"),
}
_OTHERS = ("--kinds", "--phases-of", "--days", "--seed", "--table")


def add_simulate_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the options of the simulator."""
    group = parser.add_argument_group("simulate")
    for flag, (_, kind, text) in _OPTIONS.items():
        group.add_argument(flag, type=kind, metavar="N", help=text)
    group.add_argument("--kinds", metavar="NAME", help="what fails: llama3 (default), byterobust")
    group.add_argument(
        "--phases-of", metavar="RUN", help="take start, restore, stall and detection from a run"
    )
    group.add_argument("--days", type=float, metavar="N", help="simulated days of a run (54)")
    group.add_argument("--seed", type=int, metavar="N", help="the random seed (0)")
    group.add_argument(
        "--table", action="store_true", default=None, help="simulate published runs instead"
    )


def simulator_options(arguments: argparse.Namespace) -> list[str]:
    """Returns the options of the simulator that were given."""
    return [flag for flag in (*_OPTIONS, *_OTHERS) if _value(arguments, flag) is not None]


def simulate_goodput(arguments: argparse.Namespace) -> int:
    """Simulates, and prints; imports no JAX."""
    days = 54.0 if arguments.days is None else arguments.days
    seed = arguments.seed or 0
    check_number("--days", days, 0.1, 10_000)
    if arguments.html is not None:
        raise ConfigError("--html draws the goodput of a run: leave out simulate.")
    if arguments.table:
        from dovetail.runtime.goodput.published import published_report, simulate_published

        compared = simulate_published(days, seed)
        if arguments.json:
            print_json([each.facts() for each in compared])
        else:
            print(published_report(compared))
        return 0
    from dovetail.runtime.goodput.study import study_scenario

    study = study_scenario(_scenario(arguments), days, seed)
    if arguments.json:
        print_json(study.facts())
    else:
        print(study.report())
    return 0


def _scenario(arguments: argparse.Namespace) -> Scenario:
    from dovetail.runtime.goodput.simulate import FAILURE_KINDS, Scenario, measured

    scenario = Scenario()
    if arguments.phases_of is not None:
        from dovetail.run import find_run, run_goodput

        found = run_goodput(find_run(arguments.phases_of, Path("runs")))
        scenario = measured(found, scenario)
    if arguments.kinds is not None:
        if arguments.kinds not in FAILURE_KINDS:
            names = ", ".join(FAILURE_KINDS)
            raise ConfigError(f"--kinds: expected one of {names}, got {arguments.kinds!r}.")
        scenario = replace(scenario, kinds=FAILURE_KINDS[arguments.kinds])
    for flag, (name, _, _) in _OPTIONS.items():
        value = _value(arguments, flag)
        if value is None:
            continue
        tier, dot, inner = name.partition(".")
        new = replace(getattr(scenario, tier), **{inner: value}) if dot else value
        changes: dict[str, Any] = {tier: new}
        scenario = replace(scenario, **changes)
    return scenario


def _value(arguments: argparse.Namespace, flag: str) -> Any:
    return getattr(arguments, flag.removeprefix("--").replace("-", "_"))
