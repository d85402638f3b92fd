"""Runs side by side, as text, as a page and in a notebook."""

from __future__ import annotations

from dataclasses import replace

import pytest

from dovetail.run import RunComparison
from tests.cli.pages import Page, framed_page


@pytest.fixture
def compared() -> RunComparison:
    return RunComparison(
        names=("plain", "<fast>"),
        differences={"seed": ("1", None)},
        metrics={"loss": (4.0, 3.5), "held_out/loss": (None, 3.75)},
        losses={"plain": [(1, 5.0), (2, 4.0)], "<fast>": [(1, 4.5), (2, 3.5)]},
    )


def test_a_report_has_tables_and_charts(compared: RunComparison) -> None:
    text = compared.report()
    differs, metrics, losses, plain, fast = text.split("\n\n")
    assert differs.splitlines() == ["what differs  plain  <fast>", "seed          1      (absent)"]
    assert metrics.splitlines()[2].split() == ["held_out/loss", "3.75"]
    assert losses.splitlines()[-1].split() == ["step", "2", "4", "3.5"]
    assert plain.startswith("--- loss of plain\n")
    assert fast.startswith("--- loss of <fast>\n")


def test_equal_configs_are_told(compared: RunComparison) -> None:
    assert replace(compared, differences={}).report().startswith("the configs are equal\n\n")


def test_a_page_has_the_curves(compared: RunComparison) -> None:
    page = Page(compared.page())
    assert "plain and <fast>" in page.text
    assert page.tags.count("polyline") == 2
    assert framed_page(compared._repr_html_()) == compared.page()
    empty = replace(compared, losses={"plain": [], "<fast>": []})
    assert "No run has logged a loss." in Page(empty.page()).text
