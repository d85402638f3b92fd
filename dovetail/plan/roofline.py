"""The roofline: step time from FLOPs, bytes and collectives, and the rates of a device."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields

from dovetail.hardware import Chip
from dovetail.plan.collectives import KINDS, Collective
from dovetail.plan.constants import FITTED_CONSTANTS, HOST_BANDWIDTH, MATMUL, RooflineConstants
from dovetail.plan.hlo import HloProgram
from dovetail.plan.hlo_cost import instruction_cost


@dataclass(frozen=True)
class StepTime:
    """The seconds of a step, by what bounds them.

    Attributes:
        matmul: matmuls, and what is fused into them.
        memory: other XLA operations, which are bound by HBM bandwidth.
        kernels: Pallas kernels.
        hidden: communication that overlaps with compute; not part of the total.
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

    def __add__(self, other: StepTime) -> StepTime:
        return StepTime(*(getattr(self, f.name) + getattr(other, f.name) for f in fields(self)))

    def __mul__(self, times: float) -> StepTime:
        return StepTime(*(getattr(self, f.name) * times for f in fields(self)))


@dataclass(frozen=True)
class DeviceRates:
    """The rates that programs reach on one device.

    Attributes:
        flops: FLOP/s of matmuls.
        bandwidth: bytes/s to and from HBM.
        kernel_flops: FLOP/s of Pallas kernels.
        host_bandwidth: bytes/s to and from host memory.
    """

    flops: float
    bandwidth: float
    kernel_flops: float
    host_bandwidth: float


def device_rates(
    chip: Chip, precision: str, constants: RooflineConstants = FITTED_CONSTANTS
) -> DeviceRates:
    """Returns the rates of one device of a chip."""
    peak = chip.flops_per_device(precision)
    if chip.platform == "neuron":
        peak *= constants.trainium
    bandwidth = chip.memory_bandwidth / chip.devices_per_chip
    return DeviceRates(
        flops=MATMUL * peak,
        bandwidth=bandwidth,
        kernel_flops=constants.kernels * peak,
        # A CPU device is in host memory already.
        host_bandwidth=bandwidth if chip.platform == "cpu" else HOST_BANDWIDTH,
    )


def program_time(
    program: HloProgram,
    collectives: Sequence[Collective],
    seconds: Callable[[Collective], float],
    rates: DeviceRates,
) -> StepTime:
    """Sums the time of every instruction as often as it runs; Pallas kernels are left out.

    Args:
        program: the compiled program.
        collectives: its collectives.
        seconds: returns the time of one of them.
        rates: of the device.
    """
    by_computation: dict[str, list[Collective]] = defaultdict(list)
    for each in collectives:
        by_computation[each.computation].append(each)
    total = StepTime()
    for name, runs in program.runs().items():
        compute, host_seconds = _compute_time(program, name, rates)
        here = by_computation[name]
        synchronous = sum(seconds(each) for each in here if not each.is_async)
        asynchronous = sum(seconds(each) for each in here if each.is_async) + host_seconds
        hidden = min(asynchronous, compute.total)
        exposed = synchronous + asynchronous - hidden
        total += (compute + StepTime(hidden=hidden, exposed=exposed)) * runs
    return total


def _compute_time(program: HloProgram, name: str, rates: DeviceRates) -> tuple[StepTime, float]:
    """Returns the time of one run of a computation, without calls and collectives.

    The second result is the time of copies to and from host memory, which compute can hide.
    """
    where = program.computations[name]
    total, host_seconds = StepTime(), 0.0
    for each in where.instructions:
        if each.opcode.removesuffix("-start") in KINDS:
            continue
        cost = instruction_cost(program, where, each)
        hbm_seconds = cost.bytes / rates.bandwidth
        host_seconds += cost.host_bytes / rates.host_bandwidth
        if cost.flops:
            total += StepTime(matmul=max(cost.flops / rates.flops, hbm_seconds))
        elif not each.is_kernel:
            total += StepTime(memory=hbm_seconds)
    return total, host_seconds
