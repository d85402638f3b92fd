"""A plan: memory, step time and cost of an experiment on a machine, analytic or compiled."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from dovetail.plan.constants import ERROR_BAND
from dovetail.plan.roofline import StepTime
from dovetail.targets import Machine

if TYPE_CHECKING:
    from dovetail.plan.search import RankedPlan

HOUR = 3600.0


@dataclass(frozen=True)
class MemoryBreakdown:
    """The peak bytes of one device.

    Attributes:
        parameters: parameters and averages of them.
        optimizer: optimizer state.
        activations: activations that are saved for the backward pass.
        temporaries: the rest: gradients, gathered parameters, intermediates of one layer.
        limit: the HBM budget of programs.
        host: host memory that holds offloaded arrays of this device.
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
        """Whether the peak is within the budget."""
        return self.total <= self.limit


@dataclass(frozen=True)
class CollectiveCost:
    """The collectives of one kind over the same mesh axes, summed over a step.

    Attributes:
        kind: XLA's name, such as `all-gather`.
        axes: the mesh axes, joined by a space; `network` is the DCN between slices.
        bytes: the unsharded bytes that one device gathers, reduces or sends.
        count: how many collectives there are.
        seconds: their time on otherwise idle links.
    """

    kind: str
    axes: str
    bytes: float
    count: float
    seconds: float


@dataclass(frozen=True)
class Plan:
    """The plan of one training step.

    Attributes:
        experiment: its name.
        machine: the machine to run on.
        mesh: the mesh axes of more than one device.
        source: `compiled` or `analytic`.
        memory: peak bytes by kind.
        timing: seconds by kind.
        model_flops: the FLOPs of a step that count for MFU.
        items: how many items of what kind a step has, the main kind first: {"tokens": 4194304}.
        steps: steps of the run.
        precision: the precision of most matmuls.
        peak_flops: peak FLOP/s of one device at that precision.
        collectives: all collectives of a step.
        kernels: the implementation of each op, and why others were not chosen.
        slow: warnings about slow kernels.
        notes: caveats about these numbers.
        compile_seconds: the seconds of compilation.
        refusal: why the compiler refused the program; empty if it did not.
        time_source: the source of the seconds; they may be analytic when memory is compiled.
    """

    experiment: str
    machine: Machine
    mesh: dict[str, int]
    source: str
    memory: MemoryBreakdown
    timing: StepTime
    model_flops: float
    items: dict[str, int]
    steps: int
    precision: str
    peak_flops: float
    collectives: tuple[CollectiveCost, ...] = ()
    kernels: tuple[str, ...] = ()
    slow: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    compile_seconds: float | None = None
    refusal: str = ""
    time_source: str = "analytic"

    @property
    def fits(self) -> bool:
        """Whether the step can run."""
        return not self.refusal and self.memory.fits

    @property
    def step_seconds(self) -> float:
        """The seconds of a step."""
        return self.timing.total

    @property
    def mfu(self) -> float:
        """Model FLOPs utilization: model FLOPs over what the machine could compute in a step."""
        return self.model_flops / (self.step_seconds * self.machine.devices * self.peak_flops)

    @property
    def usd_per_step(self) -> float | None:
        """At list price; None if there is none."""
        price = self.machine.usd_per_hour
        return None if price is None else price * self.step_seconds / HOUR

    @property
    def item_kind(self) -> str:
        """The main kind of items, such as `tokens` or `images`."""
        return next(iter(self.items))

    @property
    def usd_per_trillion_items(self) -> float | None:
        """The cost of a trillion items of the main kind at list price; None if there is none."""
        price = self.usd_per_step
        return None if price is None else price * 1e12 / self.items[self.item_kind]

    @property
    def error_band(self) -> float:
        """The relative error of the seconds."""
        return ERROR_BAND[self.time_source]

    def facts(self) -> dict[str, Any]:
        """Returns the plan as JSON-serializable data."""
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
            "predicted_step_s": self.step_seconds,
            "predicted_step_s_error": self.error_band,
            "time_source": self.time_source,
            "seconds_by_kind": {**vars(timing)},
            "mfu": self.mfu,
            "step_flops": self.model_flops,
            "precision": self.precision,
            "peak_flops_per_device": self.peak_flops,
            "items_per_step": self.items,
            **{f"{kind}_per_step": count for kind, count in self.items.items()},
            "steps": self.steps,
            "collective_bytes": sum(each.bytes for each in self.collectives),
            "collectives": [vars(each) for each in self.collectives],
            "kernels": list(self.kernels),
            "slow_kernels": list(self.slow),
            "notes": list(self.notes),
            "compile_s": self.compile_seconds,
            "usd_per_step": self.usd_per_step,
            f"usd_per_trillion_{self.item_kind}": self.usd_per_trillion_items,
            "price": vars(self.machine.chip.price) if self.machine.chip.price else None,
        }

    def summary(self) -> str:
        """Returns the most important numbers in one line."""
        from dovetail.plan.report import plan_summary

        return plan_summary(self)

    def report(self) -> str:
        """Returns the plan as text, as `dovetail plan` prints it."""
        from dovetail.plan.report import plan_report

        return plan_report(self)

    def page(self, remedies: Sequence[RankedPlan] = ()) -> str:
        """Returns the plan as an HTML page.

        Args:
            remedies: changes that fit, for a plan that does not.
        """
        from dovetail.plan.page import plan_page

        return plan_page(self, remedies)

    def _repr_html_(self) -> str:
        """Shows the page in a notebook."""
        from dovetail.utils.html import frame

        return frame(self.page())
