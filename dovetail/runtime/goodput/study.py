"""A simulated scenario beside the closed formula, other save intervals and other spares."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from dovetail.runtime.goodput.simulate import (
    Scenario,
    Simulation,
    compare_intervals,
    compare_spares,
    first_order,
    simulate,
)
from dovetail.utils import format_duration, format_table, plural

_CLASSES = {
    "step": "step",
    "save": "save stall",
    "rolled_back": "rolled back",
    "detect": "detection",
    "hosts": "waiting for hosts",
    "start": "start and compile",
    "restore": "restore",
}


@dataclass(frozen=True)
class ScenarioStudy:
    """A scenario and its simulations.

    Attributes:
        scenario: the scenario.
        result: its simulation.
        first_order: its goodput by the closed formula.
        intervals: by rule, the save intervals of both tiers and the goodput with them.
        spares: the goodput by the number of spare hosts.
    """

    scenario: Scenario
    result: Simulation
    first_order: float
    intervals: Mapping[str, tuple[Sequence[float], float]]
    spares: Mapping[int, float]

    def facts(self) -> dict[str, Any]:
        """Returns it as JSON values."""
        return {
            "scenario": asdict(self.scenario),
            **self.result.facts(),
            "first_order": self.first_order,
            "intervals": self.intervals,
            "spares": self.spares,
        }

    def report(self) -> str:
        """Returns it as text, as `dovetail goodput simulate` prints it."""
        result, hosts = self.result, self.scenario.hosts
        wall = sum(result.seconds.values())
        classes = [
            (_CLASSES[name], f"{spent / wall:.2%}") for name, spent in result.seconds.items()
        ]
        intervals = [
            (name, *(f"{interval:,.0f} s" for interval in each), f"{fraction:.2%}")
            for name, (each, fraction) in self.intervals.items()
        ]
        spares = [
            (f"{count}", f"{fraction:.2%}", f"{fraction * hosts / (hosts + count):.2%}")
            for count, fraction in self.spares.items()
        ]
        return "\n\n".join(
            [
                self._headline(),
                _table(("class", "share"), classes),
                _table(("save intervals", "local", "durable", "goodput"), intervals),
                _table(("spares", "goodput", "of all hosts"), spares),
            ]
        )

    def _headline(self) -> str:
        scenario, result = self.scenario, self.result
        mtbf = 1 / scenario.failures_per_second if scenario.failures_per_second else 0.0
        failing = f"a failure every {format_duration(mtbf)}" if mtbf else "no failures"
        return (
            f"goodput {result.goodput:.2%} (±{2 * result.error:.2%}) on "
            f"{plural(scenario.hosts, 'host')}, {failing}; the closed formula gives "
            f"{self.first_order:.2%}\n"
            f"a failure costs {format_duration(result.lost_per_failure)}, repeated steps included"
        )


def study_scenario(scenario: Scenario, days: float = 54.0, seed: int = 0) -> ScenarioStudy:
    """Simulates a scenario as it is, with other save intervals and with other spares.

    Args:
        scenario: the job, its failures and its checkpoints.
        days: the length of each simulated run.
        seed: the same seed gives the same result.
    """
    return ScenarioStudy(
        scenario,
        simulate(scenario, days, seed),
        first_order(scenario),
        compare_intervals(scenario, days, seed),
        compare_spares(scenario, days, seed),
    )


def _table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Returns a table; all columns but the first hold numbers."""
    return format_table(rows, header=header, align="<" + ">" * (len(header) - 1))
