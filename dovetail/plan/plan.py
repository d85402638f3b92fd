"""A plan: what an experiment takes on a machine, wherever the figures come from."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from dovetail.plan.constants import ERROR_BAND
from dovetail.plan.timing import Timing
from dovetail.targets import Machine

HOUR = 3600.0


@dataclass(frozen=True)
class Memory:
    """What one device holds, in bytes, when it holds most.

    Attributes:
        parameters: what is trained, and averages of it.
        optimizer: what the optimizer keeps of each.
        activations: what the forward pass keeps for the backward pass.
        temporaries: everything else: gradients, gathered layers, what one layer computes.
        limit: what the device has for programs.
        host: what lies in the host's memory for this device.
    """

    parameters: float
    optimizer: float
    activations: float
    temporaries: float
    limit: float
    host: float = 0.0

    @property
    def total(self) -> float:
        """The peak."""
        return self.parameters + self.optimizer + self.activations + self.temporaries

    @property
    def fits(self) -> bool:
        """Says whether the device has as much."""
        return self.total <= self.limit


@dataclass(frozen=True)
class Exchange:
    """What devices tell each other, added up over a step.

    Attributes:
        kind: as XLA calls it.
        axes: the mesh axes along which, joined by a space; `network` is between slices.
        bytes: what one device gathers, adds up or exchanges.
        count: how often.
        seconds: how long, on links that nothing else uses.
    """

    kind: str
    axes: str
    bytes: float
    count: float
    seconds: float


@dataclass(frozen=True)
class Plan:
    """What is known of one step.

    Attributes:
        experiment: its name.
        machine: where it would run.
        mesh: the axes of more than one device.
        source: `compiled` or `analytic`.
        memory: by kind.
        timing: by kind.
        model_flops: the useful work of a step.
        tokens: of a step.
        steps: of the whole run.
        peak_flops: of one device at the precision of the products.
        exchanges: all communication.
        kernels: what was chosen, and why not others.
        slow: what there is to say of slow kernels.
        notes: what a reader must know of these figures.
        compile_s: the seconds that the compiler took.
        refusal: why the compiler refused it; empty if it did not.
        time_source: where the seconds come from, which may be arithmetic where memory is compiled.
    """

    experiment: str
    machine: Machine
    mesh: dict[str, int]
    source: str
    memory: Memory
    timing: Timing
    model_flops: float
    tokens: int
    steps: int
    precision: str
    peak_flops: float
    exchanges: tuple[Exchange, ...] = ()
    kernels: tuple[str, ...] = ()
    slow: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    compile_s: float | None = None
    refusal: str = ""
    time_source: str = "analytic"

    @property
    def fits(self) -> bool:
        """Says whether it can run."""
        return not self.refusal and self.memory.fits

    @property
    def step_s(self) -> float:
        """The seconds of a step."""
        return self.timing.total

    @property
    def mfu(self) -> float:
        """The share of the machine's peak that useful work is."""
        return self.model_flops / (self.step_s * self.machine.devices * self.peak_flops)

    @property
    def usd_per_step(self) -> float | None:
        """At list price; None where there is none."""
        price = self.machine.usd_per_hour
        return None if price is None else price * self.step_s / HOUR

    @property
    def usd_per_trillion_tokens(self) -> float | None:
        """At list price; None where there is none."""
        price = self.usd_per_step
        return None if price is None else price * 1e12 / self.tokens

    @property
    def error_band(self) -> float:
        """How far the seconds may be off, as a share."""
        return ERROR_BAND[self.time_source]

    def facts(self) -> dict[str, Any]:
        """Returns everything for machines."""
        memory, timing = self.memory, self.timing
        return {
            "experiment": self.experiment,
            "target": self.machine.name,
            "machine": str(self.machine),
            "devices": self.machine.devices,
            "mesh": self.mesh,
            "source": self.source,
            "fits": self.fits,
            "refusal": self.refusal,
            "memory_bytes_per_chip": memory.total * self.machine.chip.devices_per_chip,
            "memory_limit_bytes": memory.limit * self.machine.chip.devices_per_chip,
            "memory_by_kind": {
                name: getattr(memory, name) * self.machine.chip.devices_per_chip
                for name in ("parameters", "optimizer", "activations", "temporaries", "host")
            },
            "predicted_step_s": self.step_s,
            "predicted_step_s_error": self.error_band,
            "time_source": self.time_source,
            "seconds_by_kind": {**vars(timing)},
            "mfu": self.mfu,
            "step_flops": self.model_flops,
            "precision": self.precision,
            "peak_flops_per_device": self.peak_flops,
            "tokens_per_step": self.tokens,
            "steps": self.steps,
            "collective_bytes": sum(each.bytes for each in self.exchanges),
            "collectives": [vars(each) for each in self.exchanges],
            "kernels": list(self.kernels),
            "slow_kernels": list(self.slow),
            "notes": list(self.notes),
            "compile_s": self.compile_s,
            "usd_per_step": self.usd_per_step,
            "usd_per_trillion_tokens": self.usd_per_trillion_tokens,
            "price": vars(self.machine.chip.price) if self.machine.chip.price else None,
        }
