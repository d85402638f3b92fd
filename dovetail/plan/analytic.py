"""The analytic plan: memory and time by arithmetic, in milliseconds, for any mesh.

It knows what a step computes and keeps (`Workload`), and how parallel programs are made: parameters
are gathered layer by layer, gradients go back to those who hold them. It does not know what a
compiler makes of it; that is what compiling is for.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from jax.sharding import AbstractMesh

from dovetail.hardware import Chip
from dovetail.plan.constants import (
    ACTIVATION_PASSES,
    FITTED,
    HOST_BANDWIDTH,
    MATMUL,
    OVERLAP,
    UPDATE_BYTES,
    Constants,
)
from dovetail.plan.links import route_of_axis
from dovetail.plan.plan import Exchange, Memory, Plan
from dovetail.plan.timing import Rates, Timing
from dovetail.plan.workload import Workload
from dovetail.targets import Machine

# Layers whose parameters are gathered at a time: one is used while the next one comes.
_GATHERED_LAYERS = 2
# What a layer computes in all, against what its products give.
_WORKING_SET = 4


def mesh_of(sizes: Mapping[str, int]) -> AbstractMesh:
    """Returns a mesh of devices that are not there, for rules to ask."""
    return AbstractMesh(tuple(sizes.values()), tuple(sizes))


@dataclass(frozen=True)
class Choice:
    """What may be chosen for a machine.

    Attributes:
        mesh: the size of every axis.
        microbatches: into how many parts a batch goes through.
        offloads_optimizer: whether the optimizer's state waits in the host's memory.
    """

    mesh: Mapping[str, int]
    microbatches: int = 1
    offloads_optimizer: bool = False

    @property
    def shards(self) -> int:
        """Into how many parts the batch is split."""
        return self.mesh["data"] * self.mesh["fsdp"] * self.mesh["expert"]


def rates_of(chip: Chip, precision: str, constants: Constants = FITTED) -> Rates:
    """Returns what one device of a chip reaches."""
    peak = chip.flops_per_device(precision)
    if chip.kind == "neuron":
        peak *= constants.trainium
    bandwidth = chip.memory_bandwidth / chip.devices_per_chip
    return Rates(
        flops=MATMUL * peak,
        bandwidth=bandwidth,
        kernel_flops=constants.kernels * peak,
        # The host of a CPU is the CPU.
        host_bandwidth=bandwidth if chip.kind == "cpu" else HOST_BANDWIDTH,
    )


def estimate(
    name: str,
    steps: int,
    work: Workload,
    machine: Machine,
    choice: Choice,
    constants: Constants = FITTED,
) -> Plan:
    """Plans an experiment on a machine by arithmetic."""
    model = _Model(work, machine, choice, constants)
    return Plan(
        experiment=name,
        machine=machine,
        mesh={axis: size for axis, size in choice.mesh.items() if size > 1},
        source="analytic",
        memory=model.memory(),
        timing=model.timing(),
        model_flops=work.model_flops,
        tokens=work.tokens,
        steps=steps,
        precision=work.precision,
        peak_flops=machine.chip.flops_per_device(work.precision),
        exchanges=tuple(model.exchanges()),
        kernels=work.kernels,
        slow=work.slow,
        notes=tuple(_notes(work)),
    )


def _notes(work: Workload) -> Iterator[str]:
    for kernel in work.unknown_kernels:
        yield f"kernel {kernel}: its time is not known"
    if work.has_open_loops:
        yield "products in loops whose length depends on data are counted as without skipping"


class _Model:
    def __init__(
        self, work: Workload, machine: Machine, choice: Choice, constants: Constants
    ) -> None:
        self.work, self.machine, self.choice = work, machine, choice
        self.mesh, self.devices = choice.mesh, mesh_of(choice.mesh)
        self.rates = rates_of(machine.chip, work.precision, constants)
        self.local = {
            path: spec.size / self._parts(spec.axes) for path, spec in work.parameters.items()
        }
        self.rows = work.size.batch_size / choice.shards / choice.microbatches

    def _parts(self, axes: Any) -> int:
        split = self.work.rules.mesh_axes(axes, self.devices)
        return math.prod(self.mesh[name] for names in split for name in names)

    # memory

    def memory(self) -> Memory:
        """Adds up what a device holds."""
        work, local = self.work, sum(self.local.values())
        whole = sum(spec.size for spec in work.parameters.values())
        parameters = 4 * local
        optimizer = max(0.0, work.state_bytes * local / whole - parameters)
        shared = self.mesh["model"]
        kept = sum(each.bytes / (shared if each.is_shared else 1) for each in work.kept)
        stages = self.mesh["pipeline"]
        # Each stage has a part of the layers, and as many micro-batches on the way as stages.
        in_flight = min(self.choice.microbatches, stages) / stages if stages > 1 else 1
        on_device = 0.0 if self.choice.offloads_optimizer else optimizer
        return Memory(
            parameters=parameters,
            optimizer=on_device,
            activations=kept * self.rows / self.mesh["sequence"] * in_flight,
            temporaries=self._temporaries() + (optimizer - on_device) / 2,
            limit=self.machine.memory_for_programs,
            host=optimizer - on_device,
        )

    def _temporaries(self) -> float:
        work, size = self.work, self.work.size
        gradients = 4 * sum(self.local.values()) * (2 if self.choice.microbatches > 1 else 1)
        gathered = self._gathered() / size.layers * _GATHERED_LAYERS
        tokens = self.rows * size.sequence_length / self.mesh["sequence"]
        outputs = size.outputs_per_token / size.layers * tokens * work.number_bytes
        return gradients + gathered + _WORKING_SET * outputs / self.mesh["model"]

    def _gathered(self) -> float:
        """Returns the bytes of all parameters as a device computes with them."""
        return sum(self._gathered_by("fsdp").values())

    def _gathered_by(self, axis: str) -> dict[str, float]:
        """Returns what each parameter takes when its parts along one axis are put together."""
        found = {}
        for path, spec in self.work.parameters.items():
            names = self.work.rules.mesh_axes(spec.axes, self.devices)
            along = self.mesh[axis] if any(axis in split for split in names) else 1
            found[path] = self.local[path] * along * self.work.number_bytes
        return found

    # time

    def timing(self) -> Timing:
        """Adds up what a device is busy with."""
        work, devices = self.work, self.machine.devices
        share = work.size.batch_size / devices
        bubble = 1 + (self.mesh["pipeline"] - 1) / self.choice.microbatches
        matmul = work.matmul_flops * share * bubble / self.rates.flops
        kernels = work.kernel_flops * share * bubble / self.rates.kernel_flops
        moved = work.size.outputs_per_token * work.number_bytes * work.tokens / devices
        updated = UPDATE_BYTES * sum(self.local.values())
        memory = (ACTIVATION_PASSES * moved + updated) / self.rates.bandwidth
        told = list(self.exchanges())
        hideable = sum(each.seconds for each in told if each.axes in ("fsdp", "data"))
        waited = sum(each.seconds for each in told) - hideable
        hidden = min(hideable, OVERLAP[self.machine.chip.kind] * (matmul + kernels))
        fetched = 2 * self.memory().host / self.rates.host_bandwidth  # there and back
        return Timing(matmul, memory, kernels, hidden, waited + hideable - hidden + fetched)

    def exchanges(self) -> Iterator[Exchange]:
        """Yields what devices tell each other."""
        for kind, axis, size, count in self._told():
            if self.mesh[axis] > 1 and size > 0:
                route = route_of_axis(self.machine, dict(self.mesh), axis)
                yield Exchange(kind, axis, size, count, count * route.seconds(kind, size / count))

    def _told(self) -> Iterator[tuple[str, str, float, float]]:
        work, size, parts = self.work, self.work.size, self.choice.microbatches
        layers, mesh = size.layers, self.mesh
        gathered = self._gathered()
        # Forwards and backwards each layer's parameters come, and its gradients go.
        kind = "all-reduce" if self._over_whole_torus() else "all-gather"
        yield kind, "fsdp", 2 * parts * gathered, 2 * parts * layers
        scatter = "all-reduce" if kind == "all-reduce" else "reduce-scatter"
        yield scatter, "fsdp", parts * gathered, parts * layers
        held = sum(self.local.values()) * work.number_bytes
        yield "all-reduce", "data", parts * held, parts * layers
        tokens = self.rows * parts * size.sequence_length / mesh["sequence"]
        stream = tokens * size.width * work.number_bytes
        # After attention and after the feed-forward, forwards, again, and backwards.
        yield "all-reduce", "model", 6 * layers * stream, 6 * layers * parts
        # Queries, keys, values and what was mixed, forwards, again, and backwards.
        yield "all-to-all", "sequence", 12 * layers * stream / mesh["model"], 12 * layers * parts
        yield from self._to_experts(tokens, parts)
        yield "collective-permute", "pipeline", 2 * stream, 2 * parts

    def _to_experts(self, tokens: float, parts: int) -> Iterator[tuple[str, str, float, float]]:
        """Yields the way of tokens to their experts and back, forwards, again, and backwards."""
        size = self.work.size
        chosen = [
            spec.active_size / spec.size * spec.shape[spec.axes.index("expert")]
            for spec in self.work.parameters.values()
            if "expert" in spec.axes
        ]
        if chosen:
            moved = tokens * max(chosen) * size.width * self.work.number_bytes
            layers = size.layers
            yield "ragged-all-to-all", "expert", 6 * layers * moved, 6 * layers * parts
            held = sum(
                self.local[path]
                for path, spec in self.work.parameters.items()
                if "expert" not in spec.axes
            )
            yield "all-reduce", "expert", parts * held * self.work.number_bytes, parts * layers

    def _over_whole_torus(self) -> bool:
        """Says whether XLA gathers by adding up, as it does over whole three-dimensional slices."""
        sides = self.machine.topology.partition(":")[2].split("x")
        whole = self.mesh["fsdp"] == self.machine.devices_per_slice
        return self.machine.chip.kind == "tpu" and whole and len(sides) == 3 and "1" not in sides
