"""The time of a compiled program, from what its instructions do and what the machine can."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields

from dovetail.plan.collectives import KINDS, Collective
from dovetail.plan.hlo import ProgramText
from dovetail.plan.work import work_of


@dataclass(frozen=True)
class Timing:
    """The seconds of a step, by what the chip is busy with.

    Attributes:
        matmul: matrix products, and what is fused into them.
        memory: everything else that XLA computes; it waits for memory.
        kernels: hand-written ones.
        hidden: communication that goes on while something is computed. It is no part of the total.
        exposed: communication that is waited for.
    """

    matmul: float = 0.0
    memory: float = 0.0
    kernels: float = 0.0
    hidden: float = 0.0
    exposed: float = 0.0

    @property
    def total(self) -> float:
        """The seconds of a step."""
        return self.matmul + self.memory + self.kernels + self.exposed

    def __add__(self, other: Timing) -> Timing:
        """Adds each part."""
        return Timing(*(getattr(self, f.name) + getattr(other, f.name) for f in fields(self)))

    def __mul__(self, times: float) -> Timing:
        """Repeats it."""
        return Timing(*(getattr(self, f.name) * times for f in fields(self)))


@dataclass(frozen=True)
class Rates:
    """What one device does in a second, as far as programs reach it.

    Attributes:
        flops: of matrix products.
        bandwidth: bytes to and from its memory.
        kernel_flops: of hand-written kernels.
        host_bandwidth: bytes to and from the host's memory.
    """

    flops: float
    bandwidth: float
    kernel_flops: float
    host_bandwidth: float


def time_program(
    program: ProgramText,
    exchanged: Sequence[Collective],
    seconds: Callable[[Collective], float],
    rates: Rates,
) -> Timing:
    """Adds up the time of every instruction but kernels, as often as it is run.

    Args:
        program: what was compiled.
        exchanged: its collectives.
        seconds: how long one of them takes.
        rates: what the device can.
    """
    told: dict[str, list[Collective]] = defaultdict(list)
    for each in exchanged:
        told[each.computation].append(each)
    total = Timing()
    for name, runs in program.runs().items():
        computed, fetched = _computed(program, name, rates)
        waited = sum(seconds(each) for each in told[name] if not each.is_hidden)
        meanwhile = sum(seconds(each) for each in told[name] if each.is_hidden) + fetched
        hidden = min(meanwhile, computed.total)
        exposed = waited + meanwhile - hidden
        total += (computed + Timing(hidden=hidden, exposed=exposed)) * runs
    return total


def _computed(program: ProgramText, name: str, rates: Rates) -> tuple[Timing, float]:
    """Returns the time of one run of a computation, without what it calls and tells.

    And the time in which arrays go to the host's memory and come back, which is to be hidden.
    """
    where = program.computations[name]
    total, fetched = Timing(), 0.0
    for each in where.instructions:
        if each.opcode.removesuffix("-start") in KINDS:
            continue
        work = work_of(program, where, each)
        moved = work.bytes / rates.bandwidth
        fetched += work.host / rates.host_bandwidth
        if work.flops:
            total += Timing(matmul=max(work.flops / rates.flops, moved))
        elif not each.is_kernel:
            total += Timing(memory=moved)
    return total, fetched
