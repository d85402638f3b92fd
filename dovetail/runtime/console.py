"""The console: one live line on a terminal, plain lines elsewhere, and a loss chart at the end."""

from __future__ import annotations

import itertools
import sys
import time
from pathlib import Path
from typing import Any

from dovetail.config import Part
from dovetail.runtime.writers import Figures

_SHOWN = {  # figure: (label, format)
    "loss": ("loss", "{:.3f}"),
    "bits_per_byte": ("bits/byte", "{:.3f}"),
    "tokens_per_second": ("tokens/s", "{:,.0f}"),
    "mfu": ("MFU", "{:.1%}"),
    "memory_gb": ("memory", "{:.2f} GB"),
    "seconds_left": ("left", "{}"),
}
# What a narrow terminal does without, first to last. The step and the loss always stay.
_DROPPED = ("memory_gb", "mfu", "tokens_per_second", "bits_per_byte", "seconds_left")


class Console(Part):
    """Shows progress to a person."""

    class Config(Part.Config["Console"]):
        """How often a plain line is printed where there is no terminal."""

        seconds_between_lines: float = 10.0

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self._seconds = config.seconds_between_lines
        self._live: Any = None
        self._last_line = 0.0

    def open(self, folder: Path, first_step: int) -> None:
        """Starts the live line, on a terminal."""
        if sys.stderr.isatty():
            from rich.console import Console as RichConsole
            from rich.live import Live

            self._live = Live(
                console=RichConsole(stderr=True), refresh_per_second=4, transient=True
            )
            self._live.start()

    def write(self, step: int, figures: Figures) -> None:
        """Shows a step; a result of an evaluation gets a line that stays."""
        if "loss" not in figures:
            self._say(_evaluation_line(step, figures))
        elif self._live is not None:
            from rich.text import Text  # as it is: Rich would colour the numbers of a plain string

            line = _progress_line(step, figures, self._live.console.width)
            self._live.update(Text(line, no_wrap=True, overflow="ellipsis"))
        elif time.monotonic() - self._last_line >= self._seconds or _is_last(step, figures):
            self._last_line = time.monotonic()
            print(_progress_line(step, figures), file=sys.stderr, flush=True)

    def close(self) -> None:
        """Takes the live line away."""
        if self._live is not None:
            self._live.stop()
            self._live = None

    def _say(self, line: str) -> None:
        if not line:
            return
        if self._live is not None:
            self._live.console.print(line, highlight=False, markup=False)
        else:
            print(line, file=sys.stderr, flush=True)


def loss_chart(points: list[tuple[int, float]], width: int = 60, height: int = 8) -> str:
    """Draws (step, loss) points with block characters."""
    if len(points) < 2:
        return ""
    columns = _columns([value for _, value in points], width)
    low, high = min(columns), max(columns)
    span = (high - low) or 1.0
    rows = []
    for row in range(height, 0, -1):
        cells = "".join(_cell((value - low) / span * height, row) for value in columns)
        label = high if row == height else low if row == 1 else None
        rows.append(f"{label:8.3f} |{cells}" if label is not None else f"{'':8} |{cells}")
    first, last = f"{points[0][0]} ", f"step {points[-1][0]}"
    rows.append(f"{'':9}{first}{last.rjust(len(columns) + 1 - len(first))}")
    return "\n".join(rows)


def duration(seconds: float) -> str:
    """Writes a time span the way people say it."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours} h {minutes:02d} min"
    return f"{minutes} min {rest:02d} s" if minutes else f"{rest} s"


def _progress_line(step: int, figures: Figures, width: int | None = None) -> str:
    """Writes the figures of a step, without the least important ones where there is no room."""
    first = f"step {step}/{figures['steps']}" if "steps" in figures else f"step {step}"
    pieces = {name: _piece(name, figures[name]) for name in _SHOWN if name in figures}
    for name in _DROPPED:
        if width is None or len("  ".join([first, *pieces.values()])) <= width:
            break
        pieces.pop(name, None)
    return "  ".join([first, *pieces.values()])


def _piece(name: str, value: float | int | str) -> str:
    label, form = _SHOWN[name]
    text = duration(float(value)) if name == "seconds_left" else form.format(value)
    return f"{label} {text}"


def _evaluation_line(step: int, figures: Figures) -> str:
    numbers = {k: v for k, v in figures.items() if isinstance(v, float | int) and k != "steps"}
    shown = "  ".join(f"{name} {value:.4g}" for name, value in numbers.items())
    return f"step {step}  {shown}" if shown else ""


def _is_last(step: int, figures: Figures) -> bool:
    return step == figures.get("steps")


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
