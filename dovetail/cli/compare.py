"""Compare runs: what differs between them, their metrics and their loss curves.

dovetail compare tiny-lm tiny-lm,peak=0.003
dovetail compare runs/a runs/b --html compare.html
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from dovetail.cli.experiment import add_import_argument
from dovetail.cli.output import check_file, print_json, say
from dovetail.config import ConfigError
from dovetail.utils import Progress, format_number, format_table
from dovetail.utils.html import Html, page, table, tag

if TYPE_CHECKING:
    from dovetail.run import RunComparison


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
        arguments.html.write_text(_page(compared), encoding="utf-8")
        say(f"wrote {arguments.html}")
    if arguments.json:
        print_json(vars(compared))
    elif arguments.html is None:
        _print(compared)
    return 0


def _print(compared: RunComparison) -> None:
    blocks = [
        ("what differs", [(path, *map(_text, row)) for path, row in compared.differences.items()]),
        ("metrics", [(name, *map(_number, row)) for name, row in compared.metrics.items()]),
        ("loss", [(f"step {step}", *map(_number, row)) for step, row in compared.losses_at()]),
    ]
    for title, rows in blocks:
        if rows:
            align = "<" + (">" if title != "what differs" else "<") * len(compared.names)
            print(format_table(rows, header=(title, *compared.names), align=align), end="\n\n")
        elif title == "what differs":
            print("the configs are equal\n")
    for chart in _charts(compared):
        print(chart, end="\n\n")


def _charts(compared: RunComparison) -> list[str]:
    """Draws the loss of each run, on the same scale."""
    from dovetail.runtime.console import loss_chart

    losses = [loss for points in compared.losses.values() for _, loss in points]
    limits = (min(losses), max(losses)) if losses else None
    charts = {name: loss_chart(points, limits=limits) for name, points in compared.losses.items()}
    return [f"--- loss of {name}\n{chart}" for name, chart in charts.items() if chart]


def _page(compared: RunComparison) -> str:
    numbers = range(1, len(compared.names) + 1)
    differences = [(path, *map(_text, row)) for path, row in compared.differences.items()]
    metrics = [(name, *map(_number, row)) for name, row in compared.metrics.items()]
    return page(
        " and ".join(compared.names),
        *_section("Loss", _curves(compared)),
        *_section("What differs", table(differences, ("", *compared.names))),
        *_section("Metrics", table(metrics, ("", *compared.names), numbers)),
    )


def _section(title: str, content: Html) -> list[Html]:
    return [tag("h2", title), tag("div", content, class_="scroll")]


def _curves(compared: RunComparison) -> Html:
    curves = {name: points for name, points in compared.losses.items() if points}
    if not curves:
        return tag("p", "No run has logged a loss.")
    from dovetail.utils.plot import LinearScale, Panel, draw_panels

    panel = Panel("", "step", "loss", curves, scale=LinearScale)
    return Html(draw_panels([[panel]]))  # draw_panels escapes the names


def _text(value: str | None) -> str:
    return "(absent)" if value is None else value


def _number(value: float | None) -> str:
    return "" if value is None else format_number(value)
