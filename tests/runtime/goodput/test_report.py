"""Goodput as text, as a page and in a notebook."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from dovetail.runtime.goodput import CLASSES, Goodput, goodput
from tests.cli.pages import Page, framed_page


@pytest.fixture
def found(tmp_path: Path) -> Goodput:
    folder = tmp_path / "a<b>"
    (folder / "goodput").mkdir(parents=True)
    records = [
        {"at": 120.0, "seconds": {"start": 15.0, "compile": 5.0}},
        {"at": 200.0, "seconds": {"step": 75.0, "save": 5.0}, "steps": [0, 9], "done": True},
    ]
    text = "".join(json.dumps(record) + "\n" for record in records)
    (folder / "goodput" / "000001-0.jsonl").write_text(text)
    return goodput(folder)


def test_a_summary_names_what_took_most(found: Goodput) -> None:
    assert found.summary() == (
        "goodput: steps 75.0% of 1 min 40 s; start and end 15 s, save stall 5 s, compile 5 s"
    )


def test_a_report_has_facts_a_table_and_a_timeline(found: Goodput) -> None:
    facts, table, timeline = found.report().split("\n\n")
    assert facts.splitlines()[0].startswith("goodput 75.00% of 1 min 40 s; ")
    assert [line.split("  ")[0] for line in table.splitlines()[1:]] == [
        CLASSES[name] for name in ("step", "save", "start", "compile")
    ]
    assert timeline.startswith("timeline, 1.56 s per character\n")


def test_a_page_is_named_after_the_run(found: Goodput) -> None:
    assert found.run == "a<b>"
    assert "Goodput of a<b>" in Page(found.page()).text
    assert framed_page(found._repr_html_()) == found.page()


def test_a_run_without_time_is_shown() -> None:
    nothing = dict.fromkeys(CLASSES, 0.0)
    empty = Goodput(nothing, nothing, 0, 0, 0, 1, {}, [])
    assert "goodput 0.00% of 0 s" in empty.report()
    assert "goodput 0.00% of 0 s" in Page(empty.page()).text
