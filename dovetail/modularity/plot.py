"""A line plot as SVG text, without a plotting library."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape

Curve = Sequence[tuple[float, float]]

_COLORS = ("#4477aa", "#ee6677", "#228833", "#ccbb44", "#66ccee", "#aa3377", "#bbbbbb")
_WIDTH, _HEIGHT, _LEFT, _TOP, _LEGEND = 460, 300, 60, 40, 190


@dataclass(frozen=True)
class Panel:
    """One plot: curves by name, with a linear x-axis and a logarithmic y-axis that has a zero.

    `highlighted` names the curve that is drawn thick.
    """

    title: str
    x_label: str
    y_label: str
    curves: Mapping[str, Curve]
    highlighted: str


def draw_panels(rows: Sequence[Sequence[Panel]]) -> str:
    """Draws rows of panels."""
    wide, high = _WIDTH + _LEGEND, _HEIGHT + _TOP + 50
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
    top = max(y for points in panel.curves.values() for _, y in points)
    right = max(x for points in panel.curves.values() for x, _ in points)
    decades = max(1, math.ceil(math.log10(max(top, 10))))
    plot_width, plot_height = _WIDTH - _LEFT, _HEIGHT - _TOP

    def place(x: float, y: float) -> str:
        up = math.log10(1 + y) / math.log10(1 + 10**decades)
        return f"{_LEFT + x / right * plot_width:.1f},{_HEIGHT - up * plot_height:.1f}"

    parts = [_text(_LEFT, 20, panel.title, bold=True)]
    parts += [_text(_LEFT + plot_width / 2, _HEIGHT + 36, panel.x_label, "middle")]
    parts += [_text(_LEFT, _TOP - 6, panel.y_label)]
    for value in [0, *(10**power for power in range(decades + 1))]:
        x, y = place(0, value).split(",")
        parts.append(
            f'<line x1="{x}" y1="{y}" x2="{_WIDTH}" y2="{y}" stroke="#dddddd"/>'
            + _text(_LEFT - 6, float(y) + 4, f"{value:g}", "end")
        )
    for value in (0, right / 4, right / 2, 3 * right / 4, right):
        x = place(value, 0).split(",")[0]
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
