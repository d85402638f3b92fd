"""Planning: an analytic answer at once, then the compiler's, from the cache if it is known."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from dovetail.kernels import SlowKernelWarning
from dovetail.plan.analytic import estimate
from dovetail.plan.cache import PlanCache
from dovetail.plan.candidates import Candidate, candidate_of
from dovetail.plan.compiled import compile_plan
from dovetail.plan.devices import missing_compiler
from dovetail.plan.plan import Plan
from dovetail.plan.workload import Workload, workload

if TYPE_CHECKING:
    from dovetail.targets import Machine
    from dovetail.trainer import Trainer

Tell = Callable[[str], None]


@dataclass
class Planner:
    """Plans one experiment on one machine, in as many ways as asked.

    Attributes:
        name: of the experiment.
        config: fitted to the machine by its rule and by the user.
        machine: where it would run.
        cache: what compilers have said before.
        tell: is told what takes long.
    """

    name: str
    config: Trainer.Config
    machine: Machine
    cache: PlanCache
    tell: Tell = lambda _: None

    def __post_init__(self) -> None:
        """Nothing is traced yet."""
        self._works: dict[str, Workload] = {}

    @property
    def obstacle(self) -> str:
        """Why this machine cannot be compiled for here; empty if it can."""
        return missing_compiler(self.machine)

    def work(self, candidate: Candidate | None = None) -> Workload:
        """Returns what the experiment asks for; it depends on what layers keep, and on no mesh."""
        keep = candidate.keep if candidate is not None else ""
        if keep not in self._works:
            config = self.config if candidate is None else candidate.apply(self.config)
            with warnings.catch_warnings():  # choices are printed with the plan
                warnings.simplefilter("ignore", SlowKernelWarning)
                self._works[keep] = workload(config, self.machine.chip.kind)
        return self._works[keep]

    def rough(self, candidate: Candidate | None = None) -> Plan:
        """Plans by arithmetic."""
        chosen = candidate or candidate_of(self.config, self.machine)
        steps = int(self.config.steps)
        plan = estimate(self.name, steps, self.work(candidate), self.machine, chosen.choice())
        return plan

    def exact(self, candidate: Candidate | None = None) -> Plan:
        """Plans by compiling; what was compiled before is not compiled again."""
        config = self.config if candidate is None else candidate.apply(self.config)
        rough = self.rough(candidate)
        known = self.cache.find(config, self.machine, rough)
        if known is not None:
            return known
        work = self.work(candidate)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", SlowKernelWarning)
            plan = compile_plan(self.name, config, self.machine, work, rough)
        self.cache.keep(config, self.machine, plan)
        return plan
