"""What a search may choose: meshes, what layers keep, micro-batches, where the optimizer lies."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from dovetail.config import apply_modifier, find
from dovetail.parallel import MESH_AXES, MeshLayout
from dovetail.plan.analytic import Choice, mesh_of
from dovetail.plan.workload import Workload
from dovetail.targets import Machine

if TYPE_CHECKING:
    from dovetail.trainer import Trainer

# From what costs most memory and least time to the opposite.
_PRODUCTS = (
    "(attention_query,attention_key,attention_value,attention_output,"
    "feed_forward_gate,feed_forward_up)"
)
KEEP = (
    "everything",
    _PRODUCTS,
    "dots",
    "(attention_output,feed_forward_gate)",
    "attention",
    "nothing",
)
_MOST_SHARED = 8
_MOST_PARTS = 64


@dataclass(frozen=True)
class Candidate:
    """One way to fit an experiment to a machine.

    Attributes:
        mesh: the size of every axis.
        keep: what layers keep, as `remat:keep=` takes it; empty leaves it as it is.
        microbatches: into how many parts a batch goes through.
        offloads_optimizer: whether the optimizer's state waits in the host's memory.
    """

    mesh: tuple[tuple[str, int], ...]
    keep: str
    microbatches: int
    offloads_optimizer: bool

    def choice(self) -> Choice:
        """Returns it as the analytic model takes it."""
        return Choice(dict(self.mesh), self.microbatches, self.offloads_optimizer)

    def modifiers(self) -> list[str]:
        """Returns the modifiers that make it, as after `--with`."""
        found = [f"remat:keep={self.keep}"] if self.keep else []
        if self.microbatches > 1:
            found.append(f"accumulate:steps={self.microbatches}")
        if self.offloads_optimizer:
            found.append("offload-optimizer")
        return found

    def arguments(self, rule: Candidate) -> list[str]:
        """Returns it as the command line takes it, beside a target whose rule chose otherwise."""
        modifiers = [word for text in self.modifiers() for word in ("--with", text)]
        if self.microbatches == 1 < rule.microbatches:
            modifiers += ["--with", "accumulate:steps=1"]
        chosen = dict(rule.mesh)
        return modifiers + [
            f"mesh.{axis}={size}"
            for axis, size in self.mesh
            if size > 1 or chosen[axis] > 1 or axis == "fsdp"
        ]

    def sizes(self) -> dict[str, int]:
        """Returns the axes of more than one device, and fsdp always: by default it takes all."""
        return {axis: size for axis, size in self.mesh if size != 1 or axis == "fsdp"}

    def apply(self, config: Trainer.Config) -> Trainer.Config:
        """Returns an experiment fitted this way."""
        from dovetail.learner import Accumulate, Autodiff
        from dovetail.parallel import DeviceMemory, HostMemory

        fitted: Any = config.clone()
        # What the experiment has of its own gives way, where it is not what was found.
        if isinstance(getattr(fitted.learner, "gradients", None), Accumulate.Config):
            fitted.learner.gradients = Autodiff.Config()
        if isinstance(getattr(fitted.learner, "optimizer_memory", None), HostMemory.Config):
            fitted.learner.optimizer_memory = DeviceMemory.Config()
        for text in self.modifiers():
            fitted = apply_modifier(fitted, text)
        sizes: dict[str, Any] = dict(self.sizes())
        fitted.mesh = MeshLayout.Config(**sizes)
        return fitted

    def __str__(self) -> str:
        """Writes it for people."""
        mesh = " x ".join(f"{axis} {size}" for axis, size in self.mesh if size > 1)
        parts = [f"mesh {mesh or 'of one device'}", *self.modifiers()]
        return ", ".join(parts)


def candidates(work: Workload, config: Trainer.Config, machine: Machine) -> Iterator[Candidate]:
    """Yields every mesh that divides, with every way to keep less."""
    from dovetail.layers import Stack

    keeps = KEEP if find(config, Stack) is not None else ("",)
    meshes = [mesh for mesh in _meshes(work, machine) if _divides(work, mesh)]
    parts = _microbatches(config)
    for mesh, keep, microbatches, offloads in itertools.product(
        meshes, keeps, parts, (False, True)
    ):
        found = Candidate(tuple(mesh.items()), keep, microbatches, offloads)
        if work.size.batch_size % (found.choice().shards * microbatches) == 0:
            yield found


def candidate_of(config: Trainer.Config, machine: Machine) -> Candidate:
    """Returns what a config has chosen already; what it keeps stays as it is."""
    from dovetail.parallel import HostMemory

    learner: Any = config.learner
    mesh = config.mesh.build().shape(machine.devices)
    memory = getattr(learner, "optimizer_memory", None)
    return Candidate(
        tuple(mesh.items()),
        "",
        int(getattr(getattr(learner, "gradients", None), "microbatches", 1)),
        isinstance(memory, HostMemory.Config),
    )


def _microbatches(config: Trainer.Config) -> Iterable[int]:
    """Returns the numbers of parts to try; an experiment that says its own keeps it."""
    from dovetail.learner import Accumulate, Autodiff

    gradients = getattr(config.learner, "gradients", None)
    if isinstance(gradients, Autodiff.Config | Accumulate.Config):
        return [2**power for power in range(_MOST_PARTS.bit_length())]
    return [int(getattr(gradients, "microbatches", 1))]


def _meshes(work: Workload, machine: Machine) -> Iterator[dict[str, int]]:
    """Yields the meshes of powers of two; what crosses slices is data."""
    inside = machine.devices_per_slice
    experts = work.size.divisors.get("expert", 1)
    for model, expert, sequence in itertools.product(
        _powers(min(_MOST_SHARED, inside)),
        _powers(math.gcd(experts, inside)) if experts > 1 else [1],
        _powers(min(16, inside)),
    ):
        rest, left = divmod(inside, model * expert * sequence)
        if left or not rest:
            continue
        for fsdp in _powers(rest):
            if rest % fsdp == 0:
                data = machine.slices * rest // fsdp
                sizes = dict.fromkeys(MESH_AXES, 1)
                yield sizes | {
                    "data": data,
                    "fsdp": fsdp,
                    "expert": expert,
                    "sequence": sequence,
                    "model": model,
                }


def _powers(most: int) -> list[int]:
    return [2**power for power in range(max(1, most).bit_length())]


def _divides(work: Workload, mesh: Mapping[str, int]) -> bool:
    """Says whether every parameter, head and sequence can be split so."""
    size = work.size
    if size.sequence_length % mesh["sequence"]:
        return False
    # A sequence is split only where there are too few of them.
    if mesh["sequence"] > 1 and size.batch_size % (mesh["data"] * mesh["fsdp"] * 2) == 0:
        return False
    if not size.divides(mesh["model"], ("heads", "kv_heads", "mlp", "vocab")):
        return False
    devices = mesh_of(mesh)
    return all(_splits(work, spec, devices) for spec in work.parameters.values())


def _splits(work: Workload, spec: Any, devices: Any) -> bool:
    names, mesh = work.rules.mesh_axes(spec.axes, devices), devices.shape
    return all(
        size % math.prod(mesh[name] for name in axes) == 0
        for size, axes in zip(spec.shape, names, strict=True)
    )
