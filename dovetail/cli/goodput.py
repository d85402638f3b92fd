"""Show where the time of a run went, over all its lives; or simulate it at scale.

dovetail goodput tiny-lm
dovetail goodput runs/tiny-lm --html goodput.html
dovetail goodput simulate --hosts 2048 --rate 3.8 --spares 16
dovetail goodput simulate --table
"""

from __future__ import annotations

import argparse
from pathlib import Path

from dovetail.cli.goodput_simulate import (
    SIMULATE,
    add_simulate_arguments,
    simulate_goodput,
    simulator_options,
)
from dovetail.cli.output import check_file, print_json, say
from dovetail.config import ConfigError
from dovetail.utils import Progress


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the verb's arguments."""
    parser.add_argument(
        "run", metavar="RUN|simulate", help="a run folder, or a name in runs/; or the simulator"
    )
    parser.add_argument(
        "--html", "--page", type=Path, metavar="FILE", help="write a page with the timeline"
    )
    parser.add_argument("--json", action="store_true", help="print JSON")
    add_simulate_arguments(parser)
    parser.set_defaults(handler=run)


def run(arguments: argparse.Namespace) -> int:
    """Shows the goodput of a run."""
    if arguments.run == SIMULATE:
        return simulate_goodput(arguments)
    if given := simulator_options(arguments):
        raise ConfigError(
            f"{given[0]} is an option of the simulator: dovetail goodput simulate {given[0]} ..."
        )
    if arguments.html is not None:
        check_file("--html", arguments.html)
    with Progress(arguments.run, enabled=not arguments.json) as progress:
        progress.stage("reading")
        from dovetail.run import find_run, run_goodput

        found = run_goodput(find_run(arguments.run, Path("runs")))
    if arguments.html is not None:
        arguments.html.write_text(found.page(), encoding="utf-8")
        say(f"wrote {arguments.html}")
    if arguments.json:
        print_json(found.facts())
    elif arguments.html is None:
        print(found.report())
    return 0
