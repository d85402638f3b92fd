"""Growth: the published rows spread out as they say, and the plot is one."""

from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree

import pytest

from dovetail.config.overrides import _modifiers
from dovetail.features import feature
from dovetail.features.feature import _features
from dovetail.modularity.growth import (
    PUBLISHED,
    FeatureGrowth,
    GrowthPoint,
    draw_growth,
    lines_at,
    measure_growth,
)
from dovetail.modularity.ownership import delete_code

NAMESPACE = "{http://www.w3.org/2000/svg}"


def test_published_estimates_grow_as_the_paper_says() -> None:
    for row in PUBLISHED:
        assert row.at(20, 10) == row.lines
    rows = {(row.system, row.feature): row for row in PUBLISHED}
    assert rows["MaxText", "rope"].at(40, 20) == 800
    assert rows["Megatron-LM", "moe"].at(40, 20) == 40
    assert rows["Praxis", "moe"].at(40, 20) == 10
    assert rows["AXLearn", "rope"].at(40, 20) == 0


def test_the_plot_has_a_curve_per_system_and_ours() -> None:
    drawn = draw_growth(
        [
            FeatureGrowth(
                "rope", [GrowthPoint(1, 0, 3), GrowthPoint(11, 0, 63)], [GrowthPoint(1, 0, 0)]
            )
        ]
    )
    root = ElementTree.fromstring(drawn)
    curves = root.findall(f".//{NAMESPACE}polyline")
    systems = [row for row in PUBLISHED if row.feature == "rope"]
    assert len(curves) == 2 * (len(systems) + 2)
    texts = [text.text for text in root.iter(f"{NAMESPACE}text")]
    assert texts.count("Dovetail (measured)") == 2


@pytest.mark.sweep
def test_deleting_a_feature_from_a_small_package() -> None:
    one, three = lines_at("rope", "models", 1), lines_at("rope", "models", 3)
    assert one[0] == three[0] == 0
    assert 0 < one[1] < three[1], "the families that use it are more"
    assert lines_at("moe", "variants", 1)[0] == 0


def test_features_of_imported_packages_are_not_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    measured: list[list[tuple[str, str, int]]] = []

    def record(what: str, work: object, points: list[tuple[str, str, int]], *_: object) -> object:
        measured.append(points)
        return dict.fromkeys(points, (0, 0))

    monkeypatch.setattr("dovetail.modularity.growth.run_cached", record)
    measure_growth(["moe"])
    with _features.restored(), _modifiers.restored():
        feature("outside", kind="norms")(lambda config: config)
        measure_growth(["moe"])
    assert measured[0] == measured[1]


def test_code_without_a_file_is_not_deleted(tmp_path: Path) -> None:
    package = tmp_path / "package"
    package.mkdir()
    with pytest.raises(AssertionError, match="the whole package"):
        delete_code(package, [""])
    assert package.is_dir()


def test_known_points_are_not_measured_again(monkeypatch: pytest.MonkeyPatch) -> None:
    progress = []
    monkeypatch.setattr(
        "dovetail.modularity.tasks.run_in_processes",
        lambda work, tasks, jobs, imports: ((task, [0, 1]) for task in tasks),
    )
    first = measure_growth(["moe"], on_progress=lambda stage, done, total: progress.append(done))
    again = measure_growth(["moe"], on_progress=lambda stage, done, total: progress.append(-done))
    assert first == again
    assert first[0].models[0] == GrowthPoint(1, 0, 1)
    points = len(first[0].models) + len(first[0].variants)
    assert progress == [*range(points + 1), -points]
