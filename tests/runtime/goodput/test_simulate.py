"""The simulator: against the closed formula, against arithmetic, and the same for the same seed."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from dovetail.config import ConfigError
from dovetail.runtime.goodput import CLASSES, Goodput, Span
from dovetail.runtime.goodput.published import PUBLISHED
from dovetail.runtime.goodput.simulate import (
    BYTEROBUST,
    LLAMA3,
    FailureKind,
    Scenario,
    Tier,
    best_intervals,
    daly_intervals,
    first_order,
    measured,
    simulate,
    young_intervals,
)

ANY = (FailureKind("any", 1),)


def one_tier(stall, interval, write, detect, start):
    return Scenario(
        kinds=ANY,
        detect=detect,
        start=start,
        spares=0,
        local=None,
        durable=Tier(interval, stall, write, 0.0),
    )


REGIMES = {
    "21 minutes lost": one_tier(0.5, 600, 60, 60, 840),
    "remote saves": one_tier(5, 600, 60, 60, 600),
    "saves every minute": one_tier(0.3, 60, 5, 30, 150),
    "a warm spare": one_tier(0.3, 60, 5, 15, 75),
    "saves every 20 s": one_tier(0.1, 20, 2, 10, 50),
    "two tiers": Scenario(spares=0, replacement=0.0),
    "two tiers, 10% to the durable one": Scenario(durable_share=0.1, spares=0, replacement=0.0),
    "two tiers, spares": Scenario(),
    "ByteRobust's kinds": Scenario(kinds=BYTEROBUST, hosts=1200),
}


@pytest.mark.parametrize("name", REGIMES)
def test_the_simulation_is_within_a_point_of_the_closed_formula(name):
    result = simulate(REGIMES[name])
    assert abs(result.goodput - first_order(REGIMES[name])) < 0.01
    assert result.error < 0.003


def test_the_figures_of_the_study_come_out():
    """Those that an independent Monte Carlo gave for the same regimes."""
    assert simulate(REGIMES["saves every minute"]).goodput == pytest.approx(0.976, abs=0.002)
    assert simulate(REGIMES["a warm spare"]).goodput == pytest.approx(0.984, abs=0.002)
    assert simulate(REGIMES["remote saves"]).goodput == pytest.approx(0.906, abs=0.004)


def test_the_same_seed_gives_the_same_result():
    assert simulate(Scenario(), 10, seed=3) == simulate(Scenario(), 10, seed=3)
    assert simulate(Scenario(), 10, seed=3) != simulate(Scenario(), 10, seed=4)


def test_all_simulated_seconds_are_accounted():
    result = simulate(Scenario(hosts=10_000), days=20, repeats=5)
    assert sum(result.seconds.values()) == pytest.approx(5 * 20 * 86400)
    assert min(result.seconds.values()) >= 0
    assert result.facts()["seconds"] == result.seconds
    assert result.facts()["lost_per_failure"] == result.lost_per_failure > 0


def test_without_failures_only_saves_cost():
    scenario = replace(REGIMES["remote saves"], rate=0.0)
    result = simulate(scenario, repeats=2)
    assert result.goodput == pytest.approx(600 / 605)
    assert (result.failures, result.lost_per_failure) == (0, 0.0)
    assert young_intervals(scenario) == daly_intervals(scenario) == [86400.0]


def test_failures_are_as_many_as_the_rate_says():
    result = simulate(Scenario())
    assert result.failures / 20 == pytest.approx(0.0038 * 2048 * 54, rel=0.05)


def test_a_failure_costs_what_its_stages_take():
    """With saves that cost nothing and are instant, a failure costs detection and start."""
    scenario = replace(one_tier(0.0, 1.0, 0.0, 100, 200), hosts=100)
    assert simulate(scenario, days=500).lost_per_failure == pytest.approx(300.5, rel=0.01)


def test_hangs_are_detected_later():
    kinds = (FailureKind("hang", 1, hangs=True),)
    crash = simulate(REGIMES["two tiers"]).lost_per_failure
    hang = simulate(replace(REGIMES["two tiers"], kinds=kinds, detect_hang=1015.0))
    assert hang.lost_per_failure > crash + 900


def test_spares_help_until_they_suffice():
    by_spares = [simulate(replace(Scenario(), spares=count)).goodput for count in (0, 1, 2, 8, 64)]
    assert by_spares[0] < by_spares[1] < by_spares[2] < by_spares[3]
    assert by_spares[3] == pytest.approx(by_spares[4], abs=1e-3)
    assert by_spares[0] == pytest.approx(first_order(replace(Scenario(), spares=0)), abs=0.01)


def test_the_best_intervals_are_near_young_and_daly():
    scenario = Scenario()
    best, young, daly = (
        best_intervals(scenario),
        young_intervals(scenario),
        daly_intervals(scenario),
    )
    mtbf = 1 / scenario.failures_per_second
    assert young[0] == pytest.approx(math.sqrt(2 * 0.3 * mtbf / 0.98))
    assert young[1] == pytest.approx(math.sqrt(2 * 0.5 * mtbf / 0.02))
    assert daly == pytest.approx(young, rel=0.01)
    for found, rule in zip(best, young, strict=True):
        assert rule / 2.1 < found < rule * 2.1

    def at(intervals):
        return simulate(scenario.with_intervals(intervals)).goodput

    assert at(best) >= at(young)
    assert at(best) - at(young) < 0.002
    assert at([young[0] * 8, young[1]]) < at(young) - 0.005
    assert at([young[0] / 8, young[1]]) < at(young) - 0.005


def test_an_interval_is_no_shorter_than_a_write():
    scenario = one_tier(0.001, 600, 60, 60, 600)
    assert young_intervals(scenario) == [60.0]
    assert first_order(scenario.with_intervals([1.0])) == first_order(scenario.with_intervals([60]))


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"hosts": 0}, "hosts: expected more than 0"),
        ({"rate": -1.0}, "rate: expected 0 or more, got -1"),
        ({"durable": Tier(0, 1, 1, 1)}, "interval: expected more than 0"),
        ({"durable_share": 1.5}, "durable_share: expected 0 to 1"),
        ({"start": math.nan}, "start: expected 0 or more"),
    ],
)
def test_impossible_numbers_are_refused(values, message):
    with pytest.raises(ConfigError, match=message):
        Scenario(**values)


def test_the_kinds_are_the_published_ones():
    assert sum(kind.weight for kind in LLAMA3) == 419
    assert sum(kind.weight for kind in BYTEROBUST) == pytest.approx(100)


def test_published_rows_are_reproduced():
    results = {row.name: simulate(row.scenario) for row in PUBLISHED}
    llama, byterobust, axlearn, *_, spares = results.values()
    assert llama.goodput > 0.9
    assert byterobust.goodput == pytest.approx(0.97, abs=0.01)
    assert axlearn.lost_per_failure == pytest.approx(21 * 60, rel=0.25)
    assert spares.goodput > 0.97


def test_phase_times_are_taken_from_a_run():
    spans = [
        Span(1, 0.0, {"start": 50.0, "compile": 50.0, "step": 100.0, "save": 2.0}),
        Span(2, 202.0, {"idle": 4.0}),
        Span(2, 206.0, {"start": 3.0, "compile": 5.0, "restore": 2.0, "step": 10.0, "save": 1.0}),
    ]
    totals = dict.fromkeys(CLASSES, 0.0) | {"save": 3.0}
    found = Goodput(totals, totals, 9, 0, 6, 2, {}, spans)
    scenario = measured(found, Scenario())
    assert (scenario.detect, scenario.start, scenario.spare_start) == (4.0, 8.0, 8.0)
    assert scenario.local is not None
    assert (scenario.local.stall, scenario.local.restore) == (0.5, 2.0)
