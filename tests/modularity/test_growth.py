"""Growth: the published rows spread out as they say, and the plot is one."""

from __future__ import annotations

from xml.etree import ElementTree

import pytest

from dovetail.modularity.growth import PUBLISHED, Growth, Point, draw, growth, lines_at

NAMESPACE = "{http://www.w3.org/2000/svg}"


def test_published_rows_grow_as_the_paper_says() -> None:
    for row in PUBLISHED:
        assert row.at(20, 10) == row.lines
    rows = {(row.system, row.feature): row for row in PUBLISHED}
    assert rows["MaxText", "rope"].at(40, 20) == 800
    assert rows["Megatron-LM", "moe"].at(40, 20) == 40
    assert rows["Praxis", "moe"].at(40, 20) == 10
    assert rows["AXLearn", "rope"].at(40, 20) == 0


def test_the_plot_has_a_curve_a_system_and_ours() -> None:
    drawn = draw([Growth("rope", [Point(1, 0, 3), Point(11, 0, 63)], [Point(1, 0, 0)])])
    root = ElementTree.fromstring(drawn)
    curves = root.findall(f".//{NAMESPACE}polyline")
    systems = [row for row in PUBLISHED if row.feature == "rope"]
    assert len(curves) == 2 * (len(systems) + 2)
    texts = [text.text for text in root.iter(f"{NAMESPACE}text")]
    assert texts.count("Dovetail (measured)") == 2


@pytest.mark.sweep
def test_a_small_package_loses_a_feature() -> None:
    one, three = lines_at("rope", "models", 1), lines_at("rope", "models", 3)
    assert one[0] == three[0] == 0
    assert 0 < one[1] < three[1], "the families that use it are more"
    assert lines_at("moe", "variants", 1)[0] == 0


def test_known_points_are_not_measured_again(monkeypatch: pytest.MonkeyPatch) -> None:
    told = []
    monkeypatch.setattr(
        "dovetail.modularity.workers.in_processes",
        lambda work, tasks, jobs: ((task, [0, 1]) for task in tasks),
    )
    first = growth(["moe"], tell=lambda stage, done, total: told.append(done))
    again = growth(["moe"], tell=lambda stage, done, total: told.append(-done))
    assert first == again
    assert first[0].models[0] == Point(1, 0, 1)
    points = len(first[0].models) + len(first[0].variants)
    assert told == [*range(points + 1), -points]
