"""Line plots as SVG: round ticks, and a legend that fits."""

import re

import pytest

from dovetail.utils.plot import LinearScale, Panel, draw_panels, round_ticks


@pytest.mark.parametrize(
    ("low", "high", "expected"),
    [
        (0, 30, [0, 5, 10, 15, 20, 25, 30]),
        (6.952, 7.632, [7, 7.1, 7.2, 7.3, 7.4, 7.5, 7.6]),
        (-1, 1, [-1, -0.5, 0, 0.5, 1]),
        (0, 1e9, [0, 2e8, 4e8, 6e8, 8e8, 1e9]),
        (0, 3e-7, [0, 5e-8, 1e-7, 1.5e-7, 2e-7, 2.5e-7, 3e-7]),
    ],
)
def test_ticks_are_round_numbers_within_the_range(low, high, expected):
    assert round_ticks(low, high) == expected


def test_a_curve_of_equal_values_and_of_one_point_is_drawn():
    panel = Panel("loss", "step", "loss", {"run": [(1.0, 2.0)]}, scale=LinearScale)
    assert "polyline" in draw_panels([[panel]])


def test_the_legend_is_as_wide_as_its_longest_name():
    def width(name):
        panel = Panel("loss", "step", "loss", {name: [(0.0, 1.0), (3.0, 2.0)]}, scale=LinearScale)
        return int(re.search(r'width="(\d+)"', draw_panels([[panel]])).group(1))

    short, long = "tiny-lm", "tiny-lm,peak=0.001,num_layers=1,model.width=32"
    assert width(short) == width("x")
    assert width(long) >= 494 + 7 * len(long)  # where the legend's text starts, and its letters
