"""`dovetail goodput simulate`: its options, and what it prints."""

from __future__ import annotations

import argparse
import textwrap
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dovetail.cli.output import check_number, print_json
from dovetail.config import ConfigError
from dovetail.utils import format_duration, format_table, plural

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
_CLASSES = {
    "step": "step",
    "save": "save stall",
    "rolled_back": "rolled back",
    "detect": "detection",
    "hosts": "waiting for hosts",
    "start": "start and compile",
    "restore": "restore",
}


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
        return _print_table(days, seed, arguments.json)
    _print_simulation(_scenario(arguments), days, seed, arguments.json)
    return 0


def _print_simulation(scenario: Scenario, days: float, seed: int, as_json: bool) -> None:
    from dovetail.runtime.goodput import simulate as simulator

    result = simulator.simulate(scenario, days, seed)
    closed = simulator.first_order(scenario)
    saving = simulator.compare_intervals(scenario, days, seed)
    spares = simulator.compare_spares(scenario, days, seed)
    if as_json:
        facts = {"scenario": asdict(scenario), **result.facts(), "first_order": closed}
        print_json({**facts, "intervals": saving, "spares": spares})
        return
    mtbf = 1 / scenario.failures_per_second if scenario.failures_per_second else 0.0
    failing = f"a failure every {format_duration(mtbf)}" if mtbf else "no failures"
    where = plural(scenario.hosts, "host")
    print(
        f"goodput {result.goodput:.2%} (±{2 * result.error:.2%}) on {where}, {failing}; "
        f"the closed formula gives {closed:.2%}\n"
        f"a failure costs {format_duration(result.lost_per_failure)}, repeated steps included"
    )
    wall = sum(result.seconds.values())
    _print_rows(
        ("class", "share"),
        [(_CLASSES[name], f"{seconds / wall:.2%}") for name, seconds in result.seconds.items()],
    )
    _print_rows(
        ("save intervals", "local", "durable", "goodput"),
        [
            (name, *(f"{interval:,.0f} s" for interval in each), f"{fraction:.2%}")
            for name, (each, fraction) in saving.items()
        ],
    )
    hosts = scenario.hosts
    _print_rows(
        ("spares", "goodput", "of all hosts"),
        [
            (f"{count}", f"{fraction:.2%}", f"{fraction * hosts / (hosts + count):.2%}")
            for count, fraction in spares.items()
        ],
    )


def _print_rows(header: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Prints a table after an empty line; all columns but the first hold numbers."""
    print("\n" + format_table(rows, header=header, align="<" + ">" * (len(header) - 1)))


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


def _print_table(days: float, seed: int, as_json: bool) -> int:
    from dovetail.runtime.goodput.published import PUBLISHED
    from dovetail.runtime.goodput.simulate import first_order, simulate

    results = [(row, simulate(row.scenario, days, seed)) for row in PUBLISHED]
    if as_json:
        rows = [
            {
                "name": row.name,
                "published": row.published,
                **result.facts(),
                "first_order": first_order(row.scenario),
                "assumptions": row.assumptions,
            }
            for row, result in results
        ]
        print_json(rows)
        return 0
    lines = [
        (
            f"{number}",
            row.name,
            f"{row.scenario.hosts:,}",
            row.published,
            f"{result.goodput:.1%}",
            f"{first_order(row.scenario):.1%}",
            format_duration(result.lost_per_failure),
        )
        for number, (row, result) in enumerate(results, 1)
    ]
    header = ("", "run", "hosts", "published", "simulated", "formula", "lost per failure")
    print(format_table(lines, header=header, align="><><>>>"), end="\n\n")
    for number, (row, _) in enumerate(results, 1):
        print(textwrap.fill(f"{number}. {row.assumptions}", 96, subsequent_indent="   "))
    return 0


def _value(arguments: argparse.Namespace, flag: str) -> Any:
    return getattr(arguments, flag.removeprefix("--").replace("-", "_"))
