"""The planner: an analytic plan immediately, then a compiled one, from the cache if possible."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from dovetail.config import ConfigError, to_text
from dovetail.plan.analytic import estimate_plan
from dovetail.plan.candidates import Candidate, configured_candidate
from dovetail.plan.compiled import compile_step, lower_step, read_plan
from dovetail.plan.constants import FITTED_CONSTANTS, RooflineConstants
from dovetail.plan.plan import Plan
from dovetail.plan.program_cache import ProgramCache
from dovetail.plan.workload import Workload, slow_kernel_warnings, trace_workload
from dovetail.runtime import measured_cpu
from dovetail.targets import experiment_sharding, machine_program, missing_compiler

if TYPE_CHECKING:
    from dovetail.targets import Machine
    from dovetail.trainer import Trainer


@dataclass
class Planner:
    """Plans one experiment on one machine, as configured or with other candidates.

    Attributes:
        name: the name of the experiment.
        config: the experiment, fitted to the machine by its rule and by the user.
        machine: the machine to run on.
        cache: the cache of compiled programs.
        on_progress: called with a message before each long operation.
        constants: the constants of the time model.
        workloads: workloads by platform and remat policy. Planners of the same experiment
            may share them.
        is_analytic: whether to compile nothing.
        is_mesh_set: whether the user has set the mesh, which a search would replace.

    An experiment is built once per candidate and passed on as a trainer, so a planner must not be
    given another config after its first use.
    """

    name: str
    config: Trainer.Config
    machine: Machine
    cache: ProgramCache
    on_progress: Callable[[str], None] = lambda _: None
    constants: RooflineConstants = FITTED_CONSTANTS
    workloads: dict[tuple[str, str], Workload] = field(default_factory=dict)
    is_analytic: bool = False
    is_mesh_set: bool = False
    _built: tuple[Candidate | None, Trainer] | None = field(default=None, init=False, repr=False)

    def __post_init__(self) -> None:
        """Measures the rates of a CPU, which the catalogue lacks."""
        if self.machine.chip.platform == "cpu":
            self.machine = _measured(self.machine)

    @property
    def compile_obstacle(self) -> str:
        """Why this machine cannot be compiled for here; empty if it can."""
        return "nothing is to be compiled" if self.is_analytic else missing_compiler(self.machine)

    def check(self, candidate: Candidate | None = None) -> None:
        """Raises a ConfigError for parameters and batches that do not divide over the mesh."""
        self._check(candidate, with_activations=False)

    def workload(self, candidate: Candidate | None = None) -> Workload:
        """Returns the workload, which depends on what layers save but not on the mesh."""
        platform = self.machine.chip.platform
        remat = None if candidate is None else candidate.remat
        key = platform, "" if remat is None else to_text(remat)
        if key not in self.workloads:
            self.workloads[key] = trace_workload(self._trainer(candidate), platform)
        return self.workloads[key]

    def analytic_plan(self, candidate: Candidate | None = None) -> Plan:
        """Plans by arithmetic."""
        chosen = candidate or configured_candidate(self.config, self.machine)
        steps = int(self.config.steps)
        work = self.workload(candidate)
        return estimate_plan(self.name, steps, work, self.machine, chosen, self.constants)

    def compiled_plan(self, candidate: Candidate | None = None) -> Plan:
        """Plans by compiling, unless the cache has the program."""
        work, analytic = self.workload(candidate), self.analytic_plan(candidate)
        lowered = lower_step(self._trainer(candidate), self.machine)
        compiled = self.cache.get(lowered)
        if compiled is None:
            compiled = compile_step(lowered)
            self.cache.put(lowered, compiled)
        return read_plan(lowered, compiled, work, analytic, self.constants)

    def best_plan(self, candidate: Candidate | None = None) -> Plan:
        """Plans by compiling if possible, else by arithmetic.

        Raises a ConfigError for shapes that do not divide over the mesh.
        """
        if not self.compile_obstacle:
            self.check(candidate)  # its messages name the parameter
            return self.compiled_plan(candidate)
        # Find what a compiler would refuse, by tracing the step, which takes seconds. Candidates
        # only have sizes that divide activations.
        self._check(candidate, with_activations=candidate is None)
        return self.analytic_plan(candidate)

    def plan_or_refusal(self, candidate: Candidate | None = None) -> Plan:
        """Returns the best plan; one whose shapes do not divide has a `refusal`."""
        try:
            return self.best_plan(candidate)
        except ConfigError as error:
            return replace(self.analytic_plan(candidate), refusal=str(error))

    def _check(self, candidate: Candidate | None, with_activations: bool) -> None:
        with slow_kernel_warnings():  # the plan lists them
            program = machine_program(self._trainer(candidate), self.machine)
            experiment_sharding(program, self.machine, with_activations=with_activations)

    def _trainer(self, candidate: Candidate | None) -> Trainer:
        """Builds the experiment with the choices of a candidate; only the last one is kept."""
        if self._built is None or self._built[0] != candidate:
            config = self.config if candidate is None else candidate.apply(self.config)
            self._built = candidate, config.build()
        return self._built[1]


def _measured(machine: Machine) -> Machine:
    """Returns a CPU machine with its measured rates; its virtual devices share one chip."""
    import jax

    count = jax.local_device_count("cpu") if machine.any_device_count else machine.devices
    return replace(machine, chip=replace(measured_cpu(), devices_per_chip=count), chips=1)
