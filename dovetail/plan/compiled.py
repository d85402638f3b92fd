"""The compiled plan: the step that the trainer would run, through the compiler of its machine."""

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
from dovetail.kernels import choices, forget_choices
from dovetail.plan.analytic import rates_of
from dovetail.plan.collectives import Collective, collectives
from dovetail.plan.constants import FITTED, Constants
from dovetail.plan.devices import devices_of
from dovetail.plan.hlo import ProgramText
from dovetail.plan.kept import kept_bytes
from dovetail.plan.links import network_bandwidth, route_of_devices
from dovetail.plan.plan import Exchange, Memory, Plan
from dovetail.plan.slow_kernels import noting_slow_kernels
from dovetail.plan.timing import Timing, time_program
from dovetail.plan.work import factors
from dovetail.plan.workload import Workload
from dovetail.targets import lay_out

if TYPE_CHECKING:
    from collections.abc import Iterator

    from dovetail.targets import Machine
    from dovetail.trainer import Trainer

_FIGURES = (
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
class Lowered:
    """A step as a compiler is given it.

    Attributes:
        step: what JAX has lowered.
        devices: what the program would run on, in order.
        kernels: what was chosen, and why not others.
        slow: what was said of slow kernels, once each.
    """

    step: Any
    devices: tuple[str, ...]
    kernels: tuple[str, ...]
    slow: tuple[str, ...]

    @functools.cached_property
    def identity(self) -> str:
        """All that a compiler is told of the program and of the machine."""
        return "\n".join([*self.devices, self.step.as_text()])


@dataclass(frozen=True)
class Compiled:
    """What a compiler has made of a step, or why it has not.

    Attributes:
        text: the program; empty if it was refused.
        memory: the compiler's own figures, by the names that it gives them.
        seconds: how long it took.
        refusal: the compiler's words where the program needs too much memory.
    """

    text: str
    memory: dict[str, int]
    seconds: float
    refusal: str = ""


def lower_step(config: Trainer.Config, machine: Machine) -> Lowered:
    """Lowers an experiment's step for a machine: the one that the trainer would run there."""
    program = config.build().program(devices_of(machine))
    forget_choices()
    with noting_slow_kernels() as slow:
        step = program.lowered
    mesh = program.placement.device_mesh
    devices = tuple(f"{each.device_kind} {each}" for each in mesh.devices.flat)
    return Lowered(step, devices, tuple(choices()), tuple(slow))


def compile_step(lowered: Lowered) -> Compiled:
    """Gives a step to its machine's compiler."""
    start = time.monotonic()
    with _no_cache():
        try:
            compiled = lowered.step.compile()
        except jax.errors.JaxRuntimeError as error:
            seconds = time.monotonic() - start
            return Compiled(text="", memory={}, seconds=seconds, refusal=_refusal(error))
    seconds = time.monotonic() - start
    analysis = compiled.memory_analysis()
    memory = {name: int(getattr(analysis, name)) for name in _FIGURES}
    return Compiled(text=compiled.as_text(), memory=memory, seconds=seconds)


def read_plan(
    lowered: Lowered,
    compiled: Compiled,
    config: Trainer.Config,
    work: Workload,
    rough: Plan,
    constants: Constants = FITTED,
) -> Plan:
    """Reads what the compiler made of a step.

    Args:
        lowered: what the compiler was given.
        compiled: what it has made of it.
        config: what that comes from.
        work: what the experiment asks for.
        rough: the analytic plan, for what a program does not tell.
        constants: the shares of peak rates that programs reach.
    """
    # What arithmetic has traced on no mesh, the lowered step says more exactly.
    rough = replace(rough, kernels=lowered.kernels, slow=lowered.slow)
    if compiled.refusal:
        return _refused_plan(rough, compiled)
    machine, trainer = rough.machine, config.build()
    mesh = trainer.mesh.mesh(devices_of(machine))
    text = ProgramText(compiled.text)
    told = collectives(text, mesh)
    route = _Routes(machine, mesh)
    layout = lay_out(config, machine, with_activations=False)
    plan = replace(
        rough,
        source="compiled",
        memory=_memory(compiled.memory, text, layout, machine),
        exchanges=tuple(_added_up(told, route)),
        compile_s=compiled.seconds,
    )
    if not _is_timed(machine):
        return replace(plan, notes=(*plan.notes, _NOT_TIMED))
    timing = _timing(text, told, route, machine, work, constants)
    return replace(plan, timing=timing, time_source="compiled")


def _is_timed(machine: Machine) -> bool:
    """Says whether the program tells its time; GPUs' products are not tuned without a GPU."""
    return machine.chip.kind != "gpu"


def _timing(
    text: ProgramText,
    told: Sequence[Collective],
    route: _Routes,
    machine: Machine,
    work: Workload,
    constants: Constants,
) -> Timing:
    rates = rates_of(machine.chip, work.precision, constants)
    timing = time_program(text, told, route.seconds, rates)
    # What a kernel does is not in the program's text, nor how often a loop runs whose length
    # depends on data. Both were counted when the model was traced.
    rows = work.size.batch_size / machine.devices
    kernels = work.kernel_flops * rows / rates.kernel_flops
    if work.has_open_loops:
        multiplied = work.matmul_flops * rows / rates.flops
        timing = replace(timing, matmul=max(timing.matmul, multiplied))
    return replace(timing, kernels=kernels)


class _Routes:
    """The time of collectives; groups that lie alike are looked at once."""

    def __init__(self, machine: Machine, mesh: Any) -> None:
        self.machine, self.devices = machine, mesh.devices.flatten()
        self.known: dict[Any, Any] = {}

    def seconds(self, each: Collective) -> float:
        if each.crosses:
            return each.bytes / network_bandwidth(self.machine.chip)
        key = (each.group, each.kind == "collective-permute")
        if key not in self.known:
            members = [self.devices[place] for place in each.group]
            self.known[key] = route_of_devices(self.machine, members)
        return float(self.known[key].seconds(each.kind, each.bytes))


def _added_up(told: Sequence[Collective], route: _Routes) -> Iterator[Exchange]:
    """Adds up collectives of one kind along the same axes."""
    groups: dict[tuple[str, str], list[Collective]] = defaultdict(list)
    for each in told:
        groups[each.kind, " ".join(each.axes) or "network"].append(each)
    for (kind, axes), members in sorted(groups.items()):
        yield Exchange(
            kind=kind,
            axes=axes,
            bytes=sum(each.bytes * each.runs for each in members),
            count=sum(each.runs for each in members),
            seconds=sum(route.seconds(each) * each.runs for each in members),
        )


def _memory(figures: dict[str, int], text: ProgramText, layout: Any, machine: Machine) -> Memory:
    totals = layout.totals()
    parameters = totals.get("parameters", 0) + totals.get("averages", 0)
    optimizer = totals.get("optimizer", 0)
    host = figures["host_temp_size_in_bytes"] + figures["host_argument_size_in_bytes"]
    peak = peak_bytes(figures, machine) + _scratch(text, machine)
    kept = min(kept_bytes(text), max(0.0, peak - parameters - optimizer))
    return Memory(
        parameters=parameters,
        optimizer=optimizer,
        activations=kept,
        temporaries=max(0.0, peak - parameters - optimizer - kept),
        limit=machine.memory_for_programs,
        host=host,
    )


def _scratch(text: ProgramText, machine: Machine) -> float:
    """Returns what products take beside what the compiler has planned.

    On a CPU they pack their factors first, into memory that is not the program's. It was measured
    to be about the largest pair (docs/plan.md).
    """
    if machine.chip.kind != "cpu":
        return 0.0
    return max((each.bytes for each in factors(text)), default=0.0)


def peak_bytes(figures: dict[str, int], machine: Machine) -> float:
    """Returns what a program holds of a device's memory when it holds most.

    For TPUs the compiler's own peak counts the host's memory, too; its sum of temporaries counts
    more than is there at once. Elsewhere temporaries are what is allocated.
    """
    results = figures["output_size_in_bytes"] - figures["alias_size_in_bytes"]
    allocated = figures["argument_size_in_bytes"] + figures["temp_size_in_bytes"] + results
    if machine.chip.kind != "tpu":
        return float(allocated)
    host = figures["host_temp_size_in_bytes"] + figures["host_argument_size_in_bytes"]
    return float(min(allocated, figures["peak_memory_in_bytes"] - host))


def _refusal(error: Exception) -> str:
    """Returns the compiler's words on memory; any other failure is not ours to explain."""
    text = str(error).strip()
    if _TOO_BIG.search(text):
        return text
    raise ConfigError(
        "The compiler refuses this program, and not for want of memory: "
        f"{text.splitlines()[0][:500]}"
    ) from error


def _needed(refusal: str) -> tuple[float, float] | None:
    """Reads how much a refused program wanted, and how much there was."""
    for pattern in (_USED, _EXCEEDS):
        found = pattern.search(refusal)
        if found is not None:
            needed, available = (float(found[index]) * _SIZES[found[index + 1]] for index in (1, 3))
            return needed, available
    return None


def _refused_plan(rough: Plan, compiled: Compiled) -> Plan:
    """Returns the analytic plan, with the compiler's word on how much it would take."""
    memory = rough.memory
    told = _needed(compiled.refusal)
    if told is not None:
        needed, available = told
        rest = max(0.0, needed - memory.parameters - memory.optimizer)
        share = memory.activations / max(1.0, memory.activations + memory.temporaries)
        parts = {"activations": rest * share, "temporaries": rest * (1 - share)}
        memory = replace(memory, **parts, limit=available)
    return replace(
        rough,
        source="compiled",
        memory=memory,
        compile_s=compiled.seconds,
        refusal=compiled.refusal.splitlines()[0][:300],
        notes=(*rough.notes, "the compiler refused it: seconds are analytic"),
    )


@contextmanager
def _no_cache() -> Iterator[None]:
    """Leaves the cache alone: what is compiled for no device can be stored there, not loaded."""
    before = jax.config.values["jax_enable_compilation_cache"]
    jax.config.update("jax_enable_compilation_cache", False)
    try:
        yield
    finally:
        jax.config.update("jax_enable_compilation_cache", before)
