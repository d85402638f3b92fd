"""The console: one live line on a terminal, plain lines elsewhere, and a loss chart at the end."""

from __future__ import annotations

import itertools
from functools import partial
from pathlib import Path

from dovetail.config import Component
from dovetail.runtime.writers.base import Metrics
from dovetail.utils import Progress, format_duration, format_number

_RATE = "_per_second"  # of tokens, images, or whatever a batch counts
_SHOWN = {  # metric: (label, format)
    "loss": ("loss", "{:.3f}"),
    "bits_per_byte": ("bits/byte", "{:.3f}"),
    _RATE: ("/s", "{:,.0f}"),
    "mfu": ("MFU", "{:.1%}"),
    "memory_gb": ("memory", "{:.2f} GB"),
    "seconds_left": ("left", "{}"),
}
# Left out on a narrow terminal, first to last. The step and the loss always stay.
_DROPPED = ("memory_gb", "mfu", _RATE, "bits_per_byte", "seconds_left")


class Console(Component):
    """A metrics writer that shows progress to a person."""

    class Config(Component.Config["Console"]):
        """How often a plain line is printed where there is no terminal."""

        seconds_between_lines: float = 10.0

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self._seconds = config.seconds_between_lines
        self._progress = Progress(enabled=False)

    def open(self, folder: Path, first_step: int) -> None:
        """Shows nothing before the first step."""
        self._progress = Progress(seconds_between_lines=self._seconds)

    def write(self, step: int, metrics: Metrics) -> None:
        """Shows a step; the result of an evaluation gets a line that stays."""
        if "loss" in metrics:
            is_last = step == metrics.get("steps")
            self._progress.show(partial(_progress_line, step, metrics), is_last=is_last)
        elif line := _evaluation_line(step, metrics):
            self._progress.say(line)

    def close(self) -> None:
        """Removes the live line."""
        self._progress.close()


def loss_chart(
    points: list[tuple[int, float]],
    width: int = 60,
    height: int = 8,
    limits: tuple[float, float] | None = None,
) -> str:
    """Draws (step, loss) points with block characters.

    Args:
        points: the points; fewer than two are not drawn.
        width: characters of a row.
        height: the number of rows.
        limits: the lowest and the highest loss, for charts to be compared; None for its own.
    """
    if len(points) < 2:
        return ""
    columns = _columns([value for _, value in points], width)
    low, high = limits or (min(columns), max(columns))
    span = (high - low) or 1.0
    rows = []
    for row in range(height, 0, -1):
        cells = "".join(_cell((value - low) / span * height, row) for value in columns)
        label = high if row == height else low if row == 1 else None
        rows.append(f"{label:8.3f} |{cells}" if label is not None else f"{'':8} |{cells}")
    first, last = f"{points[0][0]} ", f"step {points[-1][0]}"
    rows.append(f"{'':9}{first}{last.rjust(len(columns) + 1 - len(first))}")
    return "\n".join(rows)


def _progress_line(step: int, metrics: Metrics, width: int | None = None) -> str:
    """Formats the metrics of a step; drops the least important ones that do not fit the width."""
    first = f"step {step}/{metrics['steps']}" if "steps" in metrics else f"step {step}"
    pieces = {name: text for name in _SHOWN if (text := _piece(name, metrics))}
    for name in _DROPPED:
        if width is None or len("  ".join([first, *pieces.values()])) <= width:
            break
        pieces.pop(name, None)
    return "  ".join([first, *pieces.values()])


def _piece(name: str, metrics: Metrics) -> str:
    """Formats one metric, or the first rate of items; empty if there is none."""
    label, form = _SHOWN[name]
    if name == _RATE:
        name = next((each for each in metrics if each.endswith(_RATE)), "")
        label = name.removesuffix(_RATE) + label
    if name not in metrics:
        return ""
    value = metrics[name]
    text = format_duration(round(float(value))) if name == "seconds_left" else form.format(value)
    return f"{label} {text}"


def _evaluation_line(step: int, metrics: Metrics) -> str:
    numbers = {k: v for k, v in metrics.items() if isinstance(v, float | int) and k != "steps"}
    shown = "  ".join(f"{name} {format_number(value)}" for name, value in numbers.items())
    return f"step {step}  {shown}" if shown else ""


def _columns(values: list[float], width: int) -> list[float]:
    """Averages values into at most `width` columns."""
    count = min(width, len(values))
    edges = [round(index * len(values) / count) for index in range(count + 1)]
    return [sum(values[a:b]) / (b - a) for a, b in itertools.pairwise(edges)]


def _cell(level: float, row: int) -> str:
    fraction = level - (row - 1)
    if fraction >= 1:
        return "█"
    return " ▁▂▃▄▅▆▇"[max(0, int(fraction * 8))] if fraction > 0 else (" " if row > 1 else "▁")
