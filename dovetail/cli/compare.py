"""Compare runs: what differs between them, their metrics and their loss curves.

dovetail compare tiny-lm tiny-lm,peak=0.003
dovetail compare runs/a runs/b --html compare.html
"""

from __future__ import annotations

import argparse
from pathlib import Path

from dovetail.cli.experiment import add_import_argument
from dovetail.cli.output import check_file, print_json, say
from dovetail.config import ConfigError
from dovetail.utils import Progress


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the verb's arguments."""
    parser.add_argument("runs", nargs="+", metavar="RUN", help="run folders, or names in runs/")
    parser.add_argument("--html", type=Path, metavar="FILE", help="write a page with the curves")
    parser.add_argument("--json", action="store_true", help="print JSON")
    add_import_argument(parser)
    parser.set_defaults(handler=run)


def run(arguments: argparse.Namespace) -> int:
    """Compares runs."""
    if len(arguments.runs) < 2:
        raise ConfigError("compare: name two runs or more. `dovetail runs` lists them.")
    if arguments.html is not None:
        check_file("--html", arguments.html)
    with Progress(" and ".join(arguments.runs), enabled=not arguments.json) as progress:
        progress.stage("reading")
        from dovetail.run import Run, compare_runs, find_run

        paths = [find_run(name, Path("runs")) for name in arguments.runs]
        compared = compare_runs([Run(path, imports=arguments.imports) for path in paths])
    if arguments.html is not None:
        arguments.html.write_text(compared.page(), encoding="utf-8")
        say(f"wrote {arguments.html}")
    if arguments.json:
        print_json(vars(compared))
    elif arguments.html is None:
        print(compared.report(), end="\n\n")
    return 0
