"""The compiled plan: the trainer's own step, compiled by the compiler of its machine."""

from __future__ import annotations

import functools
import re
import time
from collections import defaultdict
from collections.abc import Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import jax

from dovetail.config import ConfigError
from dovetail.kernels import choices, clear_choices
from dovetail.plan.collectives import Collective, collectives
from dovetail.plan.constants import FITTED_CONSTANTS, RooflineConstants
from dovetail.plan.hlo import HloProgram
from dovetail.plan.hlo_cost import matmul_operands, saved_activation_bytes
from dovetail.plan.interconnect import group_interconnect, network_bandwidth
from dovetail.plan.plan import CollectiveCost, MemoryBreakdown, Plan
from dovetail.plan.roofline import StepTime, device_rates, program_time
from dovetail.plan.workload import Workload, slow_kernel_warnings
from dovetail.targets import experiment_sharding, topology_devices

if TYPE_CHECKING:
    from collections.abc import Iterator

    from dovetail.targets import Machine
    from dovetail.trainer import Program, Trainer

_MEMORY_ANALYSIS = (
    "argument_size_in_bytes",
    "output_size_in_bytes",
    "alias_size_in_bytes",
    "temp_size_in_bytes",
    "peak_memory_in_bytes",
    "host_argument_size_in_bytes",
    "host_temp_size_in_bytes",
)
_NOT_TIMED = "memory and collectives are compiled; seconds are analytic"
_TOO_BIG = re.compile(
    r"Ran out of memory|RESOURCE_EXHAUSTED|exceeds? available|out of memory", re.I
)
_USED = re.compile(r"Used ([\d.]+)([KMGT]?) of ([\d.]+)([KMGT]?) hbm")
_EXCEEDS = re.compile(r"\(([\d.]+)([KMGT]?)\) exceeds available \w+ \(([\d.]+)([KMGT]?)\)")
_SIZES = {"K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40, "": 1}


@dataclass(frozen=True)
class LoweredStep:
    """The compiler's input.

    Attributes:
        program: the program on the devices of its machine; its step is lowered.
        kernels: the implementation of each op, and why others were not chosen.
        slow: warnings about slow kernels.
    """

    program: Program
    kernels: tuple[str, ...]
    slow: tuple[str, ...]

    @functools.cached_property
    def identity(self) -> str:
        """The program and the devices as text: the key of the program cache."""
        devices = self.program.placement.device_mesh.devices.flat
        names = [f"{each.device_kind} {each}" for each in devices]
        return "\n".join([*names, self.program.lowered.as_text()])


@dataclass(frozen=True)
class CompiledStep:
    """The compiler's output.

    Attributes:
        text: the program as HLO text; empty if it was refused.
        memory: the fields of `memory_analysis()`.
        seconds: the time of compilation.
        refusal: the compiler's message if the program needs too much memory.
    """

    text: str
    memory: dict[str, int]
    seconds: float
    refusal: str = ""


def lower_step(trainer: Trainer, machine: Machine) -> LoweredStep:
    """Lowers the step that the trainer would run on a machine."""
    program = trainer.program(topology_devices(machine))
    clear_choices()
    with slow_kernel_warnings() as slow:
        _ = program.lowered
    return LoweredStep(program, tuple(choices()), tuple(slow))


def compile_step(lowered: LoweredStep) -> CompiledStep:
    """Compiles a step with its machine's compiler."""
    start = time.monotonic()
    with _no_compilation_cache():
        try:
            compiled = lowered.program.lowered.compile()
        except jax.errors.JaxRuntimeError as error:
            seconds = time.monotonic() - start
            return CompiledStep(text="", memory={}, seconds=seconds, refusal=_refusal(error))
    seconds = time.monotonic() - start
    analysis = compiled.memory_analysis()
    memory = {name: int(getattr(analysis, name)) for name in _MEMORY_ANALYSIS}
    return CompiledStep(text=compiled.as_text(), memory=memory, seconds=seconds)


def read_plan(
    lowered: LoweredStep,
    compiled: CompiledStep,
    work: Workload,
    analytic: Plan,
    constants: RooflineConstants = FITTED_CONSTANTS,
) -> Plan:
    """Returns the plan of a compiled step.

    Args:
        lowered: the compiler's input.
        compiled: the compiler's output.
        work: the workload of the experiment.
        analytic: the analytic plan, for what the program does not show.
        constants: the shares of peak rates that programs reach.
    """
    # The workload was traced without a mesh; the lowered step has the kernels of this mesh.
    analytic = replace(analytic, kernels=lowered.kernels, slow=lowered.slow)
    if compiled.refusal:
        return _refused_plan(analytic, compiled)
    machine, mesh = analytic.machine, lowered.program.placement.device_mesh
    program = HloProgram(compiled.text)
    found = collectives(program, mesh)
    links = _GroupLinks(machine, mesh)
    sharding = experiment_sharding(lowered.program, machine, with_activations=False)
    plan = replace(
        analytic,
        source="compiled",
        memory=_memory(compiled.memory, program, sharding, machine),
        collectives=tuple(_summed(found, links)),
        compile_seconds=compiled.seconds,
    )
    # Without a GPU, XLA does not autotune matmuls, so the program says nothing about their time.
    if machine.chip.platform == "gpu":
        return replace(plan, notes=(*plan.notes, _NOT_TIMED))
    timing = _step_time(program, found, links, machine, work, constants)
    return replace(plan, timing=timing, time_source="compiled")


def _step_time(
    program: HloProgram,
    found: Sequence[Collective],
    links: _GroupLinks,
    machine: Machine,
    work: Workload,
    constants: RooflineConstants,
) -> StepTime:
    rates = device_rates(machine.chip, work.precision, constants)
    timing = program_time(program, found, links.seconds, rates)
    # The program shows neither the FLOPs of kernels nor the trip counts of loops whose length
    # depends on data. The workload has both.
    examples = work.size.batch_size / machine.devices
    kernels = work.kernel_flops * examples / rates.kernel_flops
    if work.has_dynamic_loops:
        matmul = work.matmul_flops * examples / rates.flops
        timing = replace(timing, matmul=max(timing.matmul, matmul))
    return replace(timing, kernels=kernels)


class _GroupLinks:
    """The time of collectives; interconnects are cached per device group."""

    def __init__(self, machine: Machine, mesh: Any) -> None:
        self.machine, self.devices = machine, mesh.devices.flatten()
        self.known: dict[Any, Any] = {}

    def seconds(self, each: Collective) -> float:
        if each.is_over_dcn:
            return each.bytes / network_bandwidth(self.machine.chip)
        key = (each.group, each.kind == "collective-permute")
        if key not in self.known:
            devices = [self.devices[position] for position in each.group]
            self.known[key] = group_interconnect(self.machine, devices)
        return float(self.known[key].seconds(each.kind, each.bytes))


def _summed(found: Sequence[Collective], links: _GroupLinks) -> Iterator[CollectiveCost]:
    """Sums collectives of one kind over the same mesh axes."""
    groups: dict[tuple[str, str], list[Collective]] = defaultdict(list)
    for each in found:
        groups[each.kind, " ".join(each.axes) or "network"].append(each)
    for (kind, axes), members in sorted(groups.items()):
        yield CollectiveCost(
            kind=kind,
            axes=axes,
            bytes=sum(each.bytes * each.runs for each in members),
            count=sum(each.runs for each in members),
            seconds=sum(links.seconds(each) * each.runs for each in members),
        )


def _memory(
    analysis: dict[str, int], program: HloProgram, sharding: Any, machine: Machine
) -> MemoryBreakdown:
    totals = sharding.totals()
    parameters = totals.get("parameters", 0) + totals.get("averages", 0)
    optimizer = totals.get("optimizer", 0)
    host = analysis["host_temp_size_in_bytes"] + analysis["host_argument_size_in_bytes"]
    peak = peak_bytes(analysis, machine) + _matmul_scratch(program, machine)
    saved = min(saved_activation_bytes(program), max(0.0, peak - parameters - optimizer))
    return MemoryBreakdown(
        parameters=parameters,
        optimizer=optimizer,
        activations=saved,
        temporaries=max(0.0, peak - parameters - optimizer - saved),
        limit=machine.hbm_budget,
        host=host,
    )


def _matmul_scratch(program: HloProgram, machine: Machine) -> float:
    """Returns the memory of matmuls that the compiler's analysis does not include.

    On a CPU they pack their operands into memory of their own. It was measured to be about the
    largest pair of operands (docs/plan.md).
    """
    if machine.chip.platform != "cpu":
        return 0.0
    return max((each.bytes for each in matmul_operands(program)), default=0.0)


def peak_bytes(analysis: dict[str, int], machine: Machine) -> float:
    """Returns the peak memory of a program on a device.

    On TPUs the compiler's peak includes host memory, and the sum of temporaries counts some that
    are not live at the same time. Elsewhere temporaries are what is allocated.
    """
    results = analysis["output_size_in_bytes"] - analysis["alias_size_in_bytes"]
    allocated = analysis["argument_size_in_bytes"] + analysis["temp_size_in_bytes"] + results
    if machine.chip.platform != "tpu":
        return float(allocated)
    host = analysis["host_temp_size_in_bytes"] + analysis["host_argument_size_in_bytes"]
    return float(min(allocated, analysis["peak_memory_in_bytes"] - host))


def _refusal(error: Exception) -> str:
    """Returns the compiler's message about memory; any other failure is a ConfigError."""
    text = str(error).strip()
    if _TOO_BIG.search(text):
        return text
    raise ConfigError(
        "The compiler refuses this program, for a reason other than memory: "
        f"{text.splitlines()[0][:500]}"
    ) from error


def _needed(refusal: str) -> tuple[float, float] | None:
    """Parses how much memory a refused program needs, and how much there is."""
    for pattern in (_USED, _EXCEEDS):
        found = pattern.search(refusal)
        if found is not None:
            needed, available = (float(found[index]) * _SIZES[found[index + 1]] for index in (1, 3))
            return needed, available
    return None


def _refused_plan(analytic: Plan, compiled: CompiledStep) -> Plan:
    """Returns the analytic plan with the compiler's total memory."""
    memory = analytic.memory
    found = _needed(compiled.refusal)
    if found is not None:
        needed, available = found
        rest = max(0.0, needed - memory.parameters - memory.optimizer)
        share = memory.activations / max(1.0, memory.activations + memory.temporaries)
        split = {"activations": rest * share, "temporaries": rest * (1 - share)}
        memory = replace(memory, **split, limit=available)
    return replace(
        analytic,
        source="compiled",
        memory=memory,
        compile_seconds=compiled.seconds,
        refusal=compiled.refusal.splitlines()[0][:300],
        notes=(*analytic.notes, "the compiler refused it: seconds are analytic"),
    )


@contextmanager
def _no_compilation_cache() -> Iterator[None]:
    """Disables JAX's cache, which stores programs for absent devices but cannot load them."""
    before = jax.config.values["jax_enable_compilation_cache"]
    jax.config.update("jax_enable_compilation_cache", False)
    try:
        yield
    finally:
        jax.config.update("jax_enable_compilation_cache", before)
