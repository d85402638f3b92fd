"""The compiled plan: the step that the trainer would run, through the compiler of its machine."""

from __future__ import annotations

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
from dovetail.plan.links import route_of_devices
from dovetail.plan.plan import Exchange, Memory, Plan
from dovetail.plan.timing import Timing, time_program
from dovetail.plan.workload import Workload
from dovetail.targets import lay_out

if TYPE_CHECKING:
    from collections.abc import Iterator

    from dovetail.targets import Machine
    from dovetail.trainer import Trainer

_TOO_BIG = re.compile(r"Ran out of memory|RESOURCE_EXHAUSTED|exceeds? available|out of memory", re.I)
_SIZES = {"K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40, "": 1}


@dataclass(frozen=True)
class Refused:
    """What a compiler said when it gave up for want of memory."""

    reason: str
    needed: float | None
    available: float | None


def compile_plan(
    name: str,
    config: Trainer.Config,
    machine: Machine,
    work: Workload,
    rough: Plan,
    constants: Constants = FITTED,
) -> Plan:
    """Compiles an experiment's step for a machine, and reads what the compiler made of it.

    Args:
        name: of the experiment.
        config: as the target's rule and the user have made it.
        machine: where it would run.
        work: what the experiment asks for.
        rough: the analytic plan, for what a refused program cannot tell.
        constants: the shares of peak rates that programs reach.
    """
    program = config.build().program(devices_of(machine))
    forget_choices()
    start = time.monotonic()
    with _no_cache():
        try:
            compiled = program.lowered.compile()
        except jax.errors.JaxRuntimeError as error:
            refused = _refusal(error)
            return _refused_plan(rough, refused, time.monotonic() - start)
    seconds = time.monotonic() - start
    text = ProgramText(compiled.as_text())
    told = collectives(text, program.placement.device_mesh)
    route = _Routes(machine, program.placement.device_mesh)
    timing = _timing(text, told, route, machine, work, constants)
    layout = lay_out(config, machine, with_activations=False)
    return replace(
        rough,
        source="compiled",
        memory=_memory(compiled.memory_analysis(), text, layout, machine),
        timing=timing if _is_timed(machine) else rough.timing,
        exchanges=tuple(_added_up(told, route)),
        kernels=tuple(choices()),
        notes=(*rough.notes, *_notes(machine)),
        compile_s=seconds,
    )


def _is_timed(machine: Machine) -> bool:
    """Says whether the program tells its time; GPUs' products are not tuned without a GPU."""
    return machine.chip.kind != "gpu"


def _notes(machine: Machine) -> tuple[str, ...]:
    if _is_timed(machine):
        return ()
    return ("memory and collectives are compiled; seconds are analytic",)


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
    # What a kernel does is not in the program's text. It was counted when the model was traced.
    rows = work.size.batch_size / machine.devices
    return replace(timing, kernels=work.kernel_flops * rows / rates.kernel_flops)


class _Routes:
    """The time of collectives; groups that lie alike are looked at once."""

    def __init__(self, machine: Machine, mesh: Any) -> None:
        self.machine, self.devices = machine, mesh.devices.flatten()
        self.known: dict[Any, Any] = {}

    def seconds(self, each: Collective) -> float:
        if each.crosses:
            network = self.machine.chip.network_bandwidth or 25e9 / 8
            return each.bytes / network
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


def _memory(analysis: Any, text: ProgramText, layout: Any, machine: Machine) -> Memory:
    totals = layout.totals()
    parameters = totals.get("parameters", 0) + totals.get("averages", 0)
    optimizer = totals.get("optimizer", 0)
    host = analysis.host_temp_size_in_bytes + analysis.host_argument_size_in_bytes
    peak = peak_bytes(analysis, machine)
    kept = min(kept_bytes(text), max(0.0, peak - parameters - optimizer))
    return Memory(
        parameters=parameters,
        optimizer=optimizer,
        activations=kept,
        temporaries=max(0.0, peak - parameters - optimizer - kept),
        limit=machine.memory_for_programs,
        host=host,
    )


def peak_bytes(analysis: Any, machine: Machine) -> float:
    """Returns what a program holds of a device's memory when it holds most.

    For TPUs the compiler's own peak counts the host's memory, too; its sum of temporaries counts
    more than is there at once. Elsewhere temporaries are what is allocated.
    """
    results = analysis.output_size_in_bytes - analysis.alias_size_in_bytes
    allocated = analysis.argument_size_in_bytes + analysis.temp_size_in_bytes + results
    if machine.chip.kind != "tpu":
        return float(allocated)
    host = analysis.host_temp_size_in_bytes + analysis.host_argument_size_in_bytes
    return float(min(allocated, analysis.peak_memory_in_bytes - host))


def _refusal(error: Exception) -> Refused:
    """Reads how much the compiler wanted; any other failure is not ours to explain."""
    text = str(error)
    if not _TOO_BIG.search(text):
        raise ConfigError(
            "The compiler refuses this program, and not for want of memory: "
            f"{text.strip().splitlines()[0][:500]}"
        ) from error
    used = re.search(r"Used ([\d.]+)([KMGT]?) of ([\d.]+)([KMGT]?) hbm", text)
    if used is None:
        used = re.search(
            r"\(([\d.]+)([KMGT]?)\) exceeds available \w+ \(([\d.]+)([KMGT]?)\)", text
        )
    if used is None:
        return Refused(text.strip().splitlines()[0][:300], None, None)
    needed, available = (
        float(used[index]) * _SIZES[used[index + 1]] for index in (1, 3)
    )
    return Refused(text.strip().splitlines()[0][:300], needed, available)


def _refused_plan(rough: Plan, refused: Refused, seconds: float) -> Plan:
    """Returns the analytic plan, with the compiler's word on how much it would take."""
    memory = rough.memory
    if refused.needed is not None:
        known = memory.parameters + memory.optimizer
        rest = max(0.0, refused.needed - known)
        share = memory.activations / max(1.0, memory.activations + memory.temporaries)
        memory = replace(
            memory,
            activations=rest * share,
            temporaries=rest * (1 - share),
            limit=refused.available or memory.limit,
        )
    return replace(
        rough,
        source="compiled",
        memory=memory,
        compile_s=seconds,
        refusal=refused.reason,
        notes=(*rough.notes, "the compiler refused it: seconds are analytic"),
    )


@contextmanager
def _no_cache() -> Iterator[None]:
    """Leaves the cache alone: what is compiled for no device can be stored there, not loaded."""
    before = jax.config.jax_enable_compilation_cache
    jax.config.update("jax_enable_compilation_cache", False)
    try:
        yield
    finally:
        jax.config.update("jax_enable_compilation_cache", before)
