"""Planning: an analytic answer at once, then the compiler's, from the cache if it is known."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from dovetail.config import ConfigError
from dovetail.plan.analytic import estimate
from dovetail.plan.cache import ProgramCache
from dovetail.plan.candidates import Candidate, candidate_of
from dovetail.plan.compiled import compile_step, lower_step, read_plan
from dovetail.plan.constants import FITTED, Constants
from dovetail.plan.devices import measured, missing_compiler
from dovetail.plan.plan import Plan
from dovetail.plan.slow_kernels import noting_slow_kernels
from dovetail.plan.workload import Workload, workload
from dovetail.targets import lay_out

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
        cache: what compilers have made before.
        tell: is told what takes long.
        constants: what the time model is fitted by.
        works: what the experiment asks for, by platform and by what layers keep; it may be shared
            by planners of the same experiment.
        is_analytic: whether nothing is to be compiled, though it could be.
    """

    name: str
    config: Trainer.Config
    machine: Machine
    cache: ProgramCache
    tell: Tell = lambda _: None
    constants: Constants = FITTED
    works: dict[tuple[str, str], Workload] = field(default_factory=dict)
    is_analytic: bool = False

    def __post_init__(self) -> None:
        """Learns the rates of a CPU, which no catalogue has."""
        self.machine = measured(self.machine)

    @property
    def obstacle(self) -> str:
        """Why this machine cannot be compiled for here; empty if it can."""
        return "nothing is to be compiled" if self.is_analytic else missing_compiler(self.machine)

    def check(self, with_activations: bool = False) -> None:
        """Raises a ConfigError for what does not divide.

        Of parameters and batches it is known at once. For activations the step is traced, which
        takes seconds, and is of use where nothing is compiled.
        """
        with noting_slow_kernels():  # they are told with the plan
            lay_out(self.config, self.machine, with_activations=with_activations)

    def work(self, candidate: Candidate | None = None) -> Workload:
        """Returns what the experiment asks for; it depends on what layers keep, and on no mesh."""
        platform = self.machine.chip.kind
        key = platform, candidate.keep if candidate is not None else ""
        if key not in self.works:
            config = self.config if candidate is None else candidate.apply(self.config)
            self.works[key] = workload(config, platform)
        return self.works[key]

    def rough(self, candidate: Candidate | None = None) -> Plan:
        """Plans by arithmetic."""
        chosen = candidate or candidate_of(self.config, self.machine)
        steps = int(self.config.steps)
        work = self.work(candidate)
        return estimate(self.name, steps, work, self.machine, chosen.choice(), self.constants)

    def exact(self, candidate: Candidate | None = None) -> Plan:
        """Plans by compiling; what was compiled before is not compiled again."""
        config = self.config if candidate is None else candidate.apply(self.config)
        work, rough = self.work(candidate), self.rough(candidate)
        lowered = lower_step(config, self.machine)
        compiled = self.cache.find(lowered)
        if compiled is None:
            compiled = compile_step(lowered)
            self.cache.keep(lowered, compiled)
        return read_plan(lowered, compiled, config, work, rough, self.constants)

    def judged(self, candidate: Candidate | None = None) -> Plan:
        """Plans by compiling, where that can be done; whatever refuses it is told in the plan."""
        try:
            if not self.obstacle:
                return self.exact(candidate)
            config = self.config if candidate is None else candidate.apply(self.config)
            # What a compiler would have refused. Candidates are made of sizes that divide
            # activations, so those need not be traced again.
            with noting_slow_kernels():
                lay_out(config, self.machine, with_activations=candidate is None)
            return self.rough(candidate)
        except ConfigError as error:
            return replace(self.rough(candidate), refusal=str(error))
