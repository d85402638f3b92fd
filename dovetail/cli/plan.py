"""Will it fit, how fast is it, what does it cost? Answered by the real compilers, with no device.

dovetail plan llama2-7b --target tpu-v5p-512
dovetail plan llama2-7b --target tpu-v5p-512 --search
dovetail plan llama2-7b --targets all --by cost
dovetail plan verify runs/tiny-lm
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dovetail.cli.experiment import add_experiment_arguments, choose
from dovetail.cli.output import print_json, say
from dovetail.cli.waiting import waiting
from dovetail.config import ConfigError

if TYPE_CHECKING:
    from dovetail.cli.experiment import Chosen
    from dovetail.plan import Plan, Planner


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the verb's arguments."""
    add_experiment_arguments(parser)
    parser.add_argument(
        "--analytic", action="store_true", help="by arithmetic alone: nothing is compiled"
    )
    parser.add_argument("--html", type=Path, metavar="FILE", help="draw it as a page")
    parser.add_argument("--json", action="store_true", help="print the figures as JSON")
    parser.set_defaults(handler=_plan)


def _plan(arguments: argparse.Namespace) -> int:
    chosen = choose(arguments)
    planner = _planner(chosen)
    plan = _settled(planner, chosen, arguments)
    if arguments.html is not None:
        from dovetail.cli.plan_page import plan_page

        arguments.html.write_text(plan_page(plan), encoding="utf-8")
        say(f"wrote {arguments.html}")
    if arguments.json:
        print_json(plan.facts())
    elif arguments.html is None:
        from dovetail.cli.plan_report import print_plan

        print_plan(plan)
    return 0


def _planner(chosen: Chosen) -> Planner:
    if chosen.machine is None:
        raise ConfigError(
            "plan: for which machine? Pass --target, such as --target tpu-v5p-512 or --target cpu; "
            "`dovetail config targets` lists them."
        )
    from dovetail.plan import PlanCache, Planner

    return Planner(chosen.name, chosen.config, chosen.machine, PlanCache())


def _settled(planner: Planner, chosen: Chosen, arguments: argparse.Namespace) -> Plan:
    """Tells the analytic plan at once, and returns the compiled one where there can be one."""
    from dovetail.cli.plan_report import in_one_line

    for report in chosen.reports:
        say(report)
    rough = planner.rough()
    if arguments.analytic:
        return rough
    if planner.obstacle:
        say(f"analytic alone: {planner.obstacle}")
        return rough
    say(in_one_line(rough))
    with waiting(f"compiling for {planner.machine}"):
        return planner.exact()
