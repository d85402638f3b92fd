"""A scenario beside other intervals and spares, and published runs, from Python."""

import pytest

from dovetail.runtime.goodput.published import PUBLISHED, published_report, simulate_published
from dovetail.runtime.goodput.simulate import Scenario, first_order, simulate
from dovetail.runtime.goodput.study import study_scenario


def test_a_study_compares_intervals_and_spares():
    scenario = Scenario(hosts=512)
    study = study_scenario(scenario, days=2, seed=1)
    assert study.result == simulate(scenario, days=2, seed=1)
    assert study.first_order == first_order(scenario)
    headline, classes, intervals, spares = study.report().split("\n\n")
    assert headline.startswith(f"goodput {study.result.goodput:.2%} (±")
    assert " on 512 hosts, a failure every 12 h" in headline
    assert [line.split("  ")[0] for line in intervals.splitlines()[1:]] == list(study.intervals)
    assert [int(line.split()[0]) for line in spares.splitlines()[1:]] == list(study.spares)
    shares = [float(line.split()[-1].rstrip("%")) for line in classes.splitlines()[1:]]
    assert sum(shares) == pytest.approx(100, abs=0.1)
    assert study.facts()["scenario"]["hosts"] == 512


def test_published_runs_are_beside_their_simulations():
    compared = simulate_published(days=2)
    table, assumptions = published_report(compared).split("\n\n")
    assert len(table.splitlines()) == 1 + len(PUBLISHED)
    assert "\n9. The same with those of RSC-2" in assumptions
    assert [each.facts()["name"] for each in compared] == [row.name for row in PUBLISHED]
