"""The analytic plan: memory and time by arithmetic, in milliseconds, for any mesh.

It combines a `Workload` with how sharded programs work: parameters are all-gathered layer by layer,
and gradients are reduce-scattered. It ignores what a compiler changes; the compiled plan does not.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

from dovetail.plan.candidates import Candidate, abstract_mesh
from dovetail.plan.constants import (
    ACTIVATION_PASSES,
    FITTED_CONSTANTS,
    OVERLAP,
    UPDATE_BYTES,
    RooflineConstants,
)
from dovetail.plan.interconnect import axis_interconnect
from dovetail.plan.plan import CollectiveCost, MemoryBreakdown, Plan
from dovetail.plan.roofline import StepTime, device_rates
from dovetail.plan.workload import Workload
from dovetail.targets import Machine

# Layers whose parameters are gathered at the same time: one computes while the next arrives.
_GATHERED_LAYERS = 2
# All intermediates of a layer, relative to the outputs of its matmuls.
_WORKING_SET = 4


def estimate_plan(
    name: str,
    steps: int,
    work: Workload,
    machine: Machine,
    candidate: Candidate,
    constants: RooflineConstants = FITTED_CONSTANTS,
) -> Plan:
    """Plans an experiment on a machine by arithmetic."""
    model = _AnalyticModel(work, machine, candidate, constants)
    return Plan(
        experiment=name,
        machine=machine,
        mesh={axis: size for axis, size in candidate.mesh if size > 1},
        source="analytic",
        memory=model.memory(),
        timing=model.step_time(),
        model_flops=work.model_flops,
        items=dict(work.items),
        steps=steps,
        precision=work.precision,
        peak_flops=machine.chip.flops_per_device(work.precision),
        collectives=tuple(model.collectives()),
        kernels=work.kernels,
        slow=work.slow,
        notes=tuple(_notes(work)),
    )


def _notes(work: Workload) -> Iterator[str]:
    for kernel in work.unknown_kernels:
        yield f"kernel {kernel}: its time is not known"
    if work.has_dynamic_loops:
        yield "matmuls in loops whose length depends on data are counted as if nothing were skipped"


class _AnalyticModel:
    def __init__(
        self, work: Workload, machine: Machine, candidate: Candidate, constants: RooflineConstants
    ) -> None:
        self.work, self.machine, self.candidate = work, machine, candidate
        self.mesh = dict(candidate.mesh)
        self.abstract_mesh = abstract_mesh(self.mesh)
        self.rates = device_rates(machine.chip, work.precision, constants)
        # Elements of each parameter on one device.
        self.local_size = {
            path: spec.size / self._shards(work.rules.for_parameter(path, spec.axes))
            for path, spec in work.parameters.items()
        }
        # Examples of one microbatch on one device.
        self.local_batch = work.size.batch_size / candidate.batch_shards / candidate.microbatches

    def _shards(self, axes: Any) -> int:
        sharded_over = self.work.rules.mesh_axes(axes, self.abstract_mesh)
        return math.prod(self.mesh[name] for names in sharded_over for name in names)

    # Memory.

    def memory(self) -> MemoryBreakdown:
        """Returns the peak memory of a device."""
        work, local = self.work, sum(self.local_size.values())
        unsharded = sum(spec.size for spec in work.parameters.values())
        parameters = 4 * local
        optimizer = max(0.0, work.state_bytes * local / unsharded - parameters)
        model = self.mesh["model"]
        saved = sum(
            each.bytes / (model if each.is_model_sharded else 1) for each in work.saved_activations
        )
        stages = self.mesh["pipeline"]
        # A stage has a share of the layers, and as many microbatches in flight as there are stages.
        in_flight = min(self.candidate.microbatches, stages) / stages if stages > 1 else 1
        on_device = 0.0 if self.candidate.offloads_optimizer else optimizer
        return MemoryBreakdown(
            parameters=parameters,
            optimizer=on_device,
            activations=saved * self.local_batch / self.mesh["sequence"] * in_flight,
            temporaries=self._temporaries() + (optimizer - on_device) / 2,
            limit=self.machine.hbm_budget,
            host=optimizer - on_device,
        )

    def _temporaries(self) -> float:
        work, size = self.work, self.work.size
        copies = 2 if self.candidate.microbatches > 1 else 1
        gradients = 4 * sum(self.local_size.values()) * copies
        gathered = self._gathered_bytes() / size.layers * _GATHERED_LAYERS
        tokens = self.local_batch * size.sequence_length / self.mesh["sequence"]
        outputs = size.outputs_per_token / size.layers * tokens * work.bytes_per_element
        return gradients + gathered + _WORKING_SET * outputs / self.mesh["model"]

    def _gathered_bytes(self) -> float:
        """Returns the bytes of all parameters after all-gathers over fsdp."""
        total = 0.0
        for path, spec in self.work.parameters.items():
            axes = self.work.rules.for_parameter(path, spec.axes)
            sharded_over = self.work.rules.mesh_axes(axes, self.abstract_mesh)
            shards = self.mesh["fsdp"] if any("fsdp" in names for names in sharded_over) else 1
            total += self.local_size[path] * shards * self.work.bytes_per_element
        return total

    # Time.

    def step_time(self) -> StepTime:
        """Returns the time of a step."""
        work, devices = self.work, self.machine.devices
        examples = work.size.batch_size / devices
        bubble = 1 + (self.mesh["pipeline"] - 1) / self.candidate.microbatches
        matmul = work.matmul_flops * examples * bubble / self.rates.flops
        kernels = work.kernel_flops * examples * bubble / self.rates.kernel_flops
        outputs = (
            work.size.outputs_per_token * work.bytes_per_element * work.num_positions / devices
        )
        update = UPDATE_BYTES * sum(self.local_size.values())
        memory = (ACTIVATION_PASSES * outputs + update) / self.rates.bandwidth
        collectives = list(self.collectives())
        hideable = sum(each.seconds for each in collectives if each.axes in ("fsdp", "data"))
        blocking = sum(each.seconds for each in collectives) - hideable
        hidden = min(hideable, OVERLAP[self.machine.chip.platform] * (matmul + kernels))
        host = 2 * self.memory().host / self.rates.host_bandwidth  # there and back
        return StepTime(matmul, memory, kernels, hidden, blocking + hideable - hidden + host)

    def collectives(self) -> Iterator[CollectiveCost]:
        """Yields the collectives of a step."""
        for kind, axis, size, count in self._collectives():
            if self.mesh[axis] > 1 and size > 0:
                links = axis_interconnect(self.machine, self.mesh, axis)
                seconds = count * links.seconds(kind, size / count)
                yield CollectiveCost(kind, axis, size, count, seconds)

    def _collectives(self) -> Iterator[tuple[str, str, float, float]]:
        """Yields kind, mesh axis, bytes and count, for axes of any size."""
        work, size, microbatches = self.work, self.work.size, self.candidate.microbatches
        layers, mesh = size.layers, self.mesh
        gathered = self._gathered_bytes()
        # Parameters of each layer are gathered forwards and backwards, and gradients scattered.
        kind = "all-reduce" if self._gathers_by_all_reduce() else "all-gather"
        yield kind, "fsdp", 2 * microbatches * gathered, 2 * microbatches * layers
        scatter = "all-reduce" if kind == "all-reduce" else "reduce-scatter"
        yield scatter, "fsdp", microbatches * gathered, microbatches * layers
        local = sum(self.local_size.values()) * work.bytes_per_element
        yield "all-reduce", "data", microbatches * local, microbatches * layers
        tokens = self.local_batch * microbatches * size.sequence_length / mesh["sequence"]
        residual = tokens * size.width * work.bytes_per_element
        # After attention and after the feed-forward: forward, recomputed, and backward.
        yield "all-reduce", "model", 6 * layers * residual, 6 * layers * microbatches
        # Queries, keys, values and outputs of attention: forward, recomputed, and backward.
        heads = 12 * layers * residual / mesh["model"]
        yield "all-to-all", "sequence", heads, 12 * layers * microbatches
        yield from self._expert_collectives(tokens, microbatches)
        yield "collective-permute", "pipeline", 2 * residual, 2 * microbatches

    def _expert_collectives(
        self, tokens: float, microbatches: int
    ) -> Iterator[tuple[str, str, float, float]]:
        """Yields the dispatch of tokens to experts and back: forward, recomputed, and backward."""
        size = self.work.size
        top_k = [
            spec.active_size / spec.size * spec.shape[spec.axes.index("expert")]
            for spec in self.work.parameters.values()
            if "expert" in spec.axes
        ]
        if top_k:
            dispatched = tokens * max(top_k) * size.width * self.work.bytes_per_element
            count = 6 * size.layers
            yield "ragged-all-to-all", "expert", count * dispatched, count * microbatches
            dense = sum(
                self.local_size[path]
                for path, spec in self.work.parameters.items()
                if "expert" not in spec.axes
            )
            size_bytes = microbatches * dense * self.work.bytes_per_element
            yield "all-reduce", "expert", size_bytes, microbatches * size.layers

    def _gathers_by_all_reduce(self) -> bool:
        """Returns whether XLA all-gathers by all-reduce, as it does over full 3D slices."""
        sides = self.machine.topology.partition(":")[2].split("x")
        is_full_slice = self.mesh["fsdp"] == self.machine.devices_per_slice
        is_3d = len(sides) == 3 and "1" not in sides
        return self.machine.chip.platform == "tpu" and is_full_slice and is_3d
