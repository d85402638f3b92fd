"""A line plot as SVG text, without a plotting library."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape

Curve = Sequence[tuple[float, float]]


class LogScale:
    """A logarithmic y-axis that has a zero."""

    def __init__(self, values: Sequence[float]) -> None:
        """Covers zero and all values."""
        self._decades = max(1, math.ceil(math.log10(max(*values, 10))))

    def ticks(self) -> list[float]:
        """Returns the labelled values."""
        return [0, *(10.0**power for power in range(self._decades + 1))]

    def fraction(self, value: float) -> float:
        """Returns the height of a value, from 0 to 1."""
        return math.log10(1 + value) / math.log10(1 + 10**self._decades)


class LinearScale:
    """A linear y-axis from the smallest value to the largest."""

    def __init__(self, values: Sequence[float]) -> None:
        """Covers all values."""
        self._low, self._span = min(values), (max(values) - min(values)) or 1.0

    def ticks(self) -> list[float]:
        """Returns the labelled values."""
        return round_ticks(self._low, self._low + self._span)

    def fraction(self, value: float) -> float:
        """Returns the height of a value, from 0 to 1."""
        return (value - self._low) / self._span


def round_ticks(low: float, high: float) -> list[float]:
    """Returns 3 to 8 round numbers of a range, 1, 2 or 5 times a power of ten apart.

    round_ticks(0, 30)         [0, 5, 10, 15, 20, 25, 30]
    round_ticks(6.952, 7.632)  [7, 7.1, 7.2, 7.3, 7.4, 7.5, 7.6]
    """
    power = 10.0 ** math.floor(math.log10((high - low) / 7))
    step = next(size * power for size in (1, 2, 5, 10) if (high - low) / (size * power) <= 7)
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [float(f"{number * step:.12g}") for number in range(first, last + 1)]


_COLORS = ("#4477aa", "#ee6677", "#228833", "#ccbb44", "#66ccee", "#aa3377", "#bbbbbb")
_WIDTH, _HEIGHT, _LEFT, _TOP, _LEGEND = 460, 300, 60, 40, 190
_PER_LETTER = 7.5  # the width of a letter of the legend, at most on average


@dataclass(frozen=True)
class Panel:
    """One plot: curves by name, with a linear x-axis.

    `highlighted` names the curve that is drawn thick.
    """

    title: str
    x_label: str
    y_label: str
    curves: Mapping[str, Curve]
    highlighted: str = ""
    scale: type[LogScale] | type[LinearScale] = LogScale


def draw_panels(rows: Sequence[Sequence[Panel]]) -> str:
    """Draws rows of panels."""
    names = [name for row in rows for panel in row for name in panel.curves]
    legend = max(_LEGEND, math.ceil(40 + _PER_LETTER * max(map(len, names), default=0)))
    wide, high = _WIDTH + legend, _HEIGHT + _TOP + 50
    body = "".join(
        f'<g transform="translate({across * wide},{down * high})">{_panel(panel)}</g>'
        for down, row in enumerate(rows)
        for across, panel in enumerate(row)
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{wide * max(map(len, rows))}" '
        f'height="{high * len(rows)}" font-family="sans-serif" font-size="12">'
        f'<rect width="100%" height="100%" fill="white"/>{body}</svg>\n'
    )


def _panel(panel: Panel) -> str:
    scale = panel.scale([y for points in panel.curves.values() for _, y in points])
    right = max(x for points in panel.curves.values() for x, _ in points)
    plot_width, plot_height = _WIDTH - _LEFT, _HEIGHT - _TOP

    def place(x: float, y: float) -> str:
        up = scale.fraction(y) * plot_height
        return f"{_LEFT + x / right * plot_width:.1f},{_HEIGHT - up:.1f}"

    parts = [_text(_LEFT, 20, panel.title, bold=True)]
    parts += [_text(_LEFT + plot_width / 2, _HEIGHT + 36, panel.x_label, "middle")]
    parts += [_text(_LEFT, _TOP - 6, panel.y_label)]
    for value in scale.ticks():
        x, y = place(0, value).split(",")
        parts.append(
            f'<line x1="{x}" y1="{y}" x2="{_WIDTH}" y2="{y}" stroke="#dddddd"/>'
            + _text(_LEFT - 6, float(y) + 4, f"{value:.4g}", "end")
        )
    for value in round_ticks(0, right):
        x = place(value, scale.ticks()[0]).split(",")[0]
        parts.append(_text(float(x), _HEIGHT + 18, f"{value:g}", "middle"))
    for index, (name, points) in enumerate(panel.curves.items()):
        color = "black" if name == panel.highlighted else _COLORS[index % len(_COLORS)]
        thick = 3.5 if name == panel.highlighted else 1.5
        line = " ".join(place(x, y) for x, y in points)
        parts.append(
            f'<polyline points="{line}" fill="none" stroke="{color}" stroke-width="{thick}"/>'
        )
        down = _TOP + 18 * index
        parts.append(
            f'<line x1="{_WIDTH + 8}" y1="{down}" x2="{_WIDTH + 28}" y2="{down}" '
            f'stroke="{color}" stroke-width="{thick}"/>' + _text(_WIDTH + 34, down + 4, name)
        )
    return "".join(parts)


def _text(x: float, y: float, text: str, anchor: str = "start", bold: bool = False) -> str:
    weight = ' font-weight="bold"' if bold else ""
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"{weight}>{escape(text)}</text>'
