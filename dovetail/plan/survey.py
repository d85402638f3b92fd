"""One experiment on every machine of the catalogue, by arithmetic: which fits, how long, how dear.

What a launcher chooses among pools by.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from dovetail.config import ConfigError
from dovetail.plan.cache import ProgramCache
from dovetail.plan.candidates import KEEP, candidates
from dovetail.plan.plan import HOUR, Plan
from dovetail.plan.planner import Planner
from dovetail.plan.search import Ranked, rank
from dovetail.plan.workload import Workload
from dovetail.targets import FAMILIES, Family, Machine, parse_target

if TYPE_CHECKING:
    from dovetail.trainer import Trainer

# Enough to tell machines apart. Before a machine is called too small, everything is tried.
_MOST_PARTS = 16


@dataclass(frozen=True)
class Row:
    """An experiment on one machine.

    Attributes:
        machine: which.
        smallest: the fewest chips of its kind that hold the experiment; None: no such machine does.
        best: the fastest that fits; None where nothing does.
        reason: why not, in words.
    """

    machine: Machine
    smallest: int | None
    best: Ranked | None
    reason: str = ""

    @property
    def plan(self) -> Plan | None:
        """The plan of the best."""
        return None if self.best is None else self.best.plan

    @property
    def seconds(self) -> float | None:
        """To the end of the experiment."""
        return None if self.plan is None else self.plan.step_s * self.plan.steps

    @property
    def usd(self) -> float | None:
        """To the end of the experiment, at list price."""
        price = self.machine.usd_per_hour
        return None if price is None or self.seconds is None else price * self.seconds / HOUR


ORDERS = {
    "time": lambda row: (row.seconds is None, row.seconds or 0.0),
    "cost": lambda row: (row.usd is None, row.usd or 0.0),
    "chips": lambda row: (row.smallest is None, row.smallest or 0),
}


class Survey:
    """Plans an experiment on many machines; what does not depend on the machine is done once."""

    def __init__(self, name: str, config: Trainer.Config) -> None:
        """Takes an experiment as no target has changed it yet."""
        self.name, self.config = name, config
        self._works: dict[tuple[str, str], Workload] = {}

    def catalogue(self, chips: int) -> Iterator[Row]:
        """Yields a row for each kind of machine, of about so many chips."""
        for family in FAMILIES.values():
            sizes = family.sizes()
            wanted = next((n for n in sizes if n // family.per_chip >= chips), sizes[-1])
            yield self.row(parse_target(f"{family.prefix}-{wanted}"), self.smallest(family))

    def named(self, names: Iterable[str]) -> Iterator[Row]:
        """Yields a row for each machine that is named."""
        for machine in [parse_target(name) for name in names]:
            family = FAMILIES.get(machine.kind.rpartition("-")[0])
            yield self.row(machine, None if family is None else self.smallest(family))

    def row(self, machine: Machine, smallest: int | None) -> Row:
        """Plans one machine."""
        try:
            ranked = self._ranked(machine)
        except ConfigError as error:
            return Row(machine, smallest, None, str(error))
        best = next((each for each in ranked if each.plan.fits), None)
        if best is None:
            ranked = self._ranked(machine, all_of_them=True)
            best = next((each for each in ranked if each.plan.fits), None)
        reason = "" if best is not None else "too big" if ranked else "no mesh divides"
        return Row(machine, smallest, best, reason)

    def smallest(self, family: Family) -> int | None:
        """Returns the fewest chips of a family that hold it; powers of two are tried."""
        for number in family.sizes():
            chips = number // family.per_chip
            if chips & (chips - 1):
                continue
            if self._holds(parse_target(f"{family.prefix}-{number}")):
                return chips
        return None

    def _holds(self, machine: Machine) -> bool:
        """Says whether anything fits: if something does, then something that keeps least."""
        planner = self._planner(machine)
        try:
            found = candidates(planner.work(), self.config, machine)
            return any(planner.rough(each).fits for each in found if each.keep in ("", KEEP[-1]))
        except ConfigError:
            return False

    def _ranked(self, machine: Machine, all_of_them: bool = False) -> list[Ranked]:
        planner = self._planner(machine)
        found = (
            each
            for each in candidates(planner.work(), self.config, machine)
            if all_of_them or not (each.offloads_optimizer or each.microbatches > _MOST_PARTS)
        )
        return rank(planner, found)

    def _planner(self, machine: Machine) -> Planner:
        return Planner(self.name, self.config, machine, ProgramCache(), works=self._works)
