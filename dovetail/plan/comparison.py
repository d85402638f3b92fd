"""Comparing targets: one experiment on many machines, by the analytic model.

It shows which machines fit, how long a run takes and what it costs.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from dovetail.config import ConfigError
from dovetail.plan.candidates import REMAT_POLICIES, candidates
from dovetail.plan.plan import HOUR, Plan
from dovetail.plan.planner import Planner
from dovetail.plan.program_cache import ProgramCache
from dovetail.plan.search import RankedPlan, rank_candidates
from dovetail.plan.workload import Workload
from dovetail.targets import MACHINE_FAMILIES, Machine, MachineFamily, parse_target

if TYPE_CHECKING:
    from dovetail.trainer import Trainer

# Enough to compare machines. If nothing fits, all candidates are tried.
_MAX_MICROBATCHES = 16


@dataclass(frozen=True)
class ComparisonRow:
    """An experiment on one machine.

    Attributes:
        machine: the machine.
        smallest: the fewest chips of its family that fit the experiment; None if none do.
        best: the fastest plan that fits; None if none does.
        reason: why nothing fits.
    """

    machine: Machine
    smallest: int | None
    best: RankedPlan | None
    reason: str = ""

    @property
    def plan(self) -> Plan | None:
        """The best plan."""
        return None if self.best is None else self.best.plan

    @property
    def seconds(self) -> float | None:
        """The time of the entire run."""
        return None if self.plan is None else self.plan.step_seconds * self.plan.steps

    @property
    def usd(self) -> float | None:
        """The cost of the entire run at list price."""
        price = self.machine.usd_per_hour
        return None if price is None or self.seconds is None else price * self.seconds / HOUR

    def facts(self) -> dict[str, Any]:
        """Returns it as JSON values."""
        return {
            "target": self.machine.name,
            "chips": self.machine.chips,
            "smallest_chips": self.smallest,
            "fits": self.best is not None,
            "reason": self.reason,
            "source": "analytic",
            "seconds": self.seconds,
            "usd": self.usd,
            "best": None if self.best is None else self.best.facts(),
        }


SORT_KEYS = {
    "time": lambda row: (row.seconds is None, row.seconds or 0.0),
    "cost": lambda row: (row.usd is None, row.usd or 0.0),
    "chips": lambda row: (row.smallest is None, row.smallest or 0),
}


class TargetComparison:
    """Plans an experiment on many machines; workloads are traced once per platform."""

    def __init__(self, name: str, config: Trainer.Config) -> None:
        """Takes an experiment to which no target was applied."""
        self.name, self.config = name, config
        self._workloads: dict[tuple[str, str], Workload] = {}

    def catalogue(self, chips: int) -> Iterator[ComparisonRow]:
        """Yields a row for each machine family, with at least that many chips if possible."""
        for family in MACHINE_FAMILIES.values():
            sizes = family.sizes()
            wanted = next((n for n in sizes if n // family.units_per_chip >= chips), sizes[-1])
            yield self.row(parse_target(f"{family.prefix}-{wanted}"), self.smallest(family))

    def named(self, names: Iterable[str]) -> Iterator[ComparisonRow]:
        """Yields a row for each named machine."""
        for machine in [parse_target(name) for name in names]:
            family = MACHINE_FAMILIES.get(machine.kind.rpartition("-")[0])
            yield self.row(machine, None if family is None else self.smallest(family))

    def report(
        self, rows: Iterable[ComparisonRow], by: Literal["time", "cost", "chips"] = "cost"
    ) -> str:
        """Returns rows as a table; those without a value to sort by come last."""
        from dovetail.plan.report import comparison_report

        return comparison_report(self.name, sorted(rows, key=SORT_KEYS[by]), by)

    def row(self, machine: Machine, smallest: int | None) -> ComparisonRow:
        """Plans one machine."""
        try:
            ranked = self._ranked(machine)
        except ConfigError as error:
            return ComparisonRow(machine, smallest, None, str(error))
        best = next((each for each in ranked if each.plan.fits), None)
        if best is None:
            ranked = self._ranked(machine, exhaustive=True)
            best = next((each for each in ranked if each.plan.fits), None)
        reason = "" if best is not None else "too big" if ranked else "no mesh divides"
        return ComparisonRow(machine, smallest, best, reason)

    def smallest(self, family: MachineFamily) -> int | None:
        """Returns the fewest chips of a family that fit it, among powers of two."""
        for number in family.sizes():
            chips = number // family.units_per_chip
            if chips & (chips - 1):
                continue
            if self._fits(parse_target(f"{family.prefix}-{number}")):
                return chips
        return None

    def _fits(self, machine: Machine) -> bool:
        """Returns whether anything fits; if so, a candidate that saves least does."""
        planner = self._planner(machine)
        try:
            found = candidates(planner.workload(), self.config, machine)
            least = (None, REMAT_POLICIES[-1])
            return any(planner.analytic_plan(each).fits for each in found if each.remat in least)
        except ConfigError:
            return False

    def _ranked(self, machine: Machine, exhaustive: bool = False) -> list[RankedPlan]:
        planner = self._planner(machine)
        found = (
            each
            for each in candidates(planner.workload(), self.config, machine)
            if exhaustive or not (each.offloads_optimizer or each.microbatches > _MAX_MICROBATCHES)
        )
        return rank_candidates(planner, found)

    def _planner(self, machine: Machine) -> Planner:
        return Planner(self.name, self.config, machine, ProgramCache(), workloads=self._workloads)
