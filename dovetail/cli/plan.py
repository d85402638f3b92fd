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

from dovetail.cli.experiment import (
    add_experiment_arguments,
    choose,
    load_all_parts,
    require_imports,
)
from dovetail.cli.output import check_file, print_json, say
from dovetail.cli.waiting import waiting
from dovetail.config import ConfigError
from dovetail.targets import prepare_devices

if TYPE_CHECKING:
    from dovetail.cli.experiment import Chosen
    from dovetail.plan import Plan, Planner


_VERIFY = "verify"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the verb's arguments."""
    add_experiment_arguments(parser)
    parser.add_argument(
        "--analytic", action="store_true", help="by arithmetic alone: nothing is compiled"
    )
    parser.add_argument(
        "--search",
        action="store_true",
        help="find the best mesh, remat, micro-batches and offloading for the machine",
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
    parser.add_argument("--html", type=Path, metavar="FILE", help="draw it as a page")
    parser.add_argument("--json", action="store_true", help="print the figures as JSON")
    parser.set_defaults(handler=_plan)


def _plan(arguments: argparse.Namespace) -> int:
    for flag, file in (("--html", arguments.html), ("--write", arguments.write)):
        if file is not None:
            check_file(flag, file)
    if arguments.write is not None and not arguments.search:
        raise ConfigError("--write saves what --search finds; pass both.")
    if arguments.experiment == _VERIFY:
        return _verify(arguments)
    if arguments.targets is not None:
        return _compare(arguments)
    chosen = choose(arguments)
    planner = _planner(chosen)
    if arguments.search:
        return _search(planner, chosen, arguments)
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
        if not plan.fits and not arguments.analytic:
            _remedy(planner, plan)
    return 0


def _compare(arguments: argparse.Namespace) -> int:
    from dovetail.cli.plan_report import print_rows, row_facts
    from dovetail.plan import ORDERS, Survey

    if arguments.target is not None or arguments.search:
        raise ConfigError("--targets compares machines: leave --target and --search out.")
    if arguments.chips < 1:
        raise ConfigError(f"--chips: expected 1 or more, got {arguments.chips}.")
    chosen = choose(arguments)
    survey = Survey(chosen.name, chosen.config)
    with waiting("planning") as tell:
        if arguments.targets == "all":
            found = survey.catalogue(arguments.chips)
        else:
            found = survey.named(arguments.targets.split(","))
        rows = []
        for row in found:
            tell(row.machine.name)
            rows.append(row)
    rows.sort(key=ORDERS[arguments.by])
    if arguments.json:
        print_json([row_facts(row) for row in rows])
    else:
        print_rows(chosen.name, rows, arguments.by)
    return 0


def _verify(arguments: argparse.Namespace) -> int:
    from dovetail.cli.plan_report import print_verified
    from dovetail.plan import Planner, ProgramCache, Ratios, verify
    from dovetail.runtime import RunFolder
    from dovetail.targets import parse_target

    if len(arguments.overrides) != 1:
        raise ConfigError("plan verify: name one run folder, such as runs/tiny-lm.")
    folder = RunFolder(Path(arguments.overrides[0]))
    about = folder.about()
    require_imports(folder, arguments.imports)
    load_all_parts()
    machine = parse_target(arguments.target or about.get("target", "cpu"))
    prepare_devices(machine)
    config: Any = folder.config()
    planner = Planner(about.get("experiment", folder.path.name), config, machine, ProgramCache())
    if planner.obstacle:
        raise ConfigError(f"plan verify: {planner.obstacle}")
    with waiting(f"compiling for {machine}"):
        found = verify(folder, planner)
    Ratios().keep(found)
    if arguments.json:
        ratios = {"time_ratio": found.time_ratio, "memory_ratio": found.memory_ratio}
        print_json({**vars(found), **ratios})
    else:
        print_verified(found)
    return 0


def _remedy(planner: Planner, plan: Plan) -> None:
    """Tells the nearest changes that fit."""
    from dovetail.cli.plan_report import print_remedies
    from dovetail.plan import remedies

    with waiting("looking for what fits") as tell:
        planner.tell = tell
        found = remedies(planner)
    print_remedies(plan, found)


def _search(planner: Planner, chosen: Chosen, arguments: argparse.Namespace) -> int:
    from dovetail.cli.plan_report import print_search, search_facts
    from dovetail.plan import rule_text, search

    for report in chosen.reports:
        say(report)
    if planner.obstacle:
        say(f"analytic alone: {planner.obstacle}")
    with waiting("searching") as tell:
        planner.tell = tell
        found = search(planner)
    if arguments.json:
        print_json(search_facts(found))
    else:
        print_search(found)
    if found.best is None:
        return 0
    text = rule_text(chosen.name, planner.machine, found.best.candidate)
    if arguments.write is not None:
        arguments.write.write_text(text, encoding="utf-8")
        say(f"wrote {arguments.write}: use it with --import {arguments.write.stem}")
    elif not arguments.json:
        print(f"\nas a rule of your own (--write FILE.py saves it):\n\n{text}")
    return 0


def _planner(chosen: Chosen) -> Planner:
    if chosen.machine is None:
        raise ConfigError(
            "plan: for which machine? Pass --target, such as --target tpu-v5p-512 or --target cpu; "
            "`dovetail config targets` lists them."
        )
    prepare_devices(chosen.machine)
    from dovetail.plan import Planner, ProgramCache

    return Planner(chosen.name, chosen.config, chosen.machine, ProgramCache())


def _settled(planner: Planner, chosen: Chosen, arguments: argparse.Namespace) -> Plan:
    """Tells the analytic plan at once, and returns the compiled one where there can be one."""
    from dovetail.cli.plan_report import in_one_line
    from dovetail.plan import Ratios

    for report in chosen.reports:
        say(report)
    rough = planner.rough()
    if (verified := Ratios().time(planner.machine.chip.name)) is not None:
        ratio, runs = verified
        say(f"on this chip {runs} verified runs took {ratio:.2f} times as long as predicted")
    if arguments.analytic:
        return rough
    if planner.obstacle:
        say(f"analytic alone: {planner.obstacle}")
        return rough
    say(in_one_line(rough))
    with waiting(f"compiling for {planner.machine}"):
        return planner.exact()
