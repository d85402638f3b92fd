"""The comparison of runs, as text and as a page."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dovetail.utils import format_number, format_table
from dovetail.utils.html import Html, page, table, tag

if TYPE_CHECKING:
    from dovetail.run.comparison import RunComparison


def comparison_report(compared: RunComparison) -> str:
    """Returns what differs, the metrics and the losses, and a chart of each run's loss."""
    blocks = [
        ("what differs", [(path, *map(_text, row)) for path, row in compared.differences.items()]),
        ("metrics", [(name, *map(_number, row)) for name, row in compared.metrics.items()]),
        ("loss", [(f"step {step}", *map(_number, row)) for step, row in compared.losses_at()]),
    ]
    shown = []
    for title, rows in blocks:
        if rows:
            align = "<" + (">" if title != "what differs" else "<") * len(compared.names)
            shown.append(format_table(rows, header=(title, *compared.names), align=align))
        elif title == "what differs":
            shown.append("the configs are equal")
    return "\n\n".join([*shown, *_charts(compared)])


def comparison_page(compared: RunComparison) -> str:
    """Returns the runs as a page, with the curves of all runs in one plot."""
    numbers = range(1, len(compared.names) + 1)
    differences = [(path, *map(_text, row)) for path, row in compared.differences.items()]
    metrics = [(name, *map(_number, row)) for name, row in compared.metrics.items()]
    return page(
        " and ".join(compared.names),
        *_section("Loss", _curves(compared)),
        *_section("What differs", table(differences, ("", *compared.names))),
        *_section("Metrics", table(metrics, ("", *compared.names), numbers)),
    )


def _charts(compared: RunComparison) -> list[str]:
    """Draws the loss of each run, on the same scale."""
    from dovetail.runtime.console import loss_chart

    losses = [loss for points in compared.losses.values() for _, loss in points]
    limits = (min(losses), max(losses)) if losses else None
    charts = {name: loss_chart(points, limits=limits) for name, points in compared.losses.items()}
    return [f"--- loss of {name}\n{chart}" for name, chart in charts.items() if chart]


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
