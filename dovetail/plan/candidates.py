"""The search space: meshes, remat policies, microbatches and optimizer offloading."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from jax.sharding import AbstractMesh

from dovetail.config import ConfigOf, find, select
from dovetail.parallel import (
    MESH_AXES,
    MeshLayout,
    Remat,
    SaveAll,
    SaveDots,
    SaveNamed,
    SaveNothing,
    remat_name,
)
from dovetail.plan.workload import Workload
from dovetail.targets import Machine

if TYPE_CHECKING:
    from dovetail.trainer import Trainer

_MATMUL_OUTPUTS = (
    "attention_query",
    "attention_key",
    "attention_value",
    "attention_output",
    "feed_forward_gate",
    "feed_forward_up",
)
_COSTLY_OUTPUTS = ("attention_output", "feed_forward_gate")
# From most memory and least time to the opposite.
REMAT_POLICIES: tuple[ConfigOf[Remat], ...] = (
    SaveAll.Config(),
    SaveNamed.Config(names=_MATMUL_OUTPUTS),
    SaveDots.Config(),
    SaveNamed.Config(names=_COSTLY_OUTPUTS),
    SaveNamed.Config(names=("attention_output",)),
    SaveNothing.Config(),
)
_MAX_MODEL_PARALLELISM = 8
_MAX_SEQUENCE_PARALLELISM = 16
_MAX_MICROBATCHES = 64


@dataclass(frozen=True)
class Candidate:
    """One way to fit an experiment to a machine.

    Attributes:
        mesh: the size of every mesh axis.
        remat: the remat policy; None leaves that of the experiment.
        microbatches: microbatches of a step.
        offloads_optimizer: whether optimizer state is in host memory.
        keeps_gradients: whether the microbatches are those of the experiment's own gradient
            computation, such as a pipeline, which stays.
    """

    mesh: tuple[tuple[str, int], ...]
    remat: ConfigOf[Remat] | None
    microbatches: int
    offloads_optimizer: bool
    keeps_gradients: bool = False

    def __hash__(self) -> int:
        """Leaves out the remat policy: a config is mutable, so it has no hash."""
        return hash((self.mesh, self.microbatches, self.offloads_optimizer, self.keeps_gradients))

    @property
    def batch_shards(self) -> int:
        """The number of shards of the global batch."""
        mesh = dict(self.mesh)
        return mesh["data"] * mesh["fsdp"] * mesh["expert"]

    def modifiers(self) -> list[str]:
        """Returns it as modifiers to type after `--with`; `apply` sets the same."""
        found = [f"remat:save={remat_name(self.remat)}"] if self.remat is not None else []
        if self.microbatches > 1 and not self.keeps_gradients:
            found.append(f"accumulate:steps={self.microbatches}")
        if self.offloads_optimizer:
            found.append("offload-optimizer")
        return found

    def arguments(self, rule: Candidate) -> list[str]:
        """Returns it as command-line arguments for a target whose rule chose `rule`."""
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
        """Returns the axes of more than one device, and fsdp, whose default is all devices."""
        return {axis: size for axis, size in self.mesh if size != 1 or axis == "fsdp"}

    def apply(self, config: Trainer.Config) -> Trainer.Config:
        """Returns an experiment with these choices, which replace its own."""
        from dovetail.layers import Stack
        from dovetail.learner import Accumulate, Autodiff
        from dovetail.parallel import DeviceMemory, HostMemory

        fitted: Any = config.clone()
        if self.remat is not None:
            fitted = select(fitted, Stack).set(remat=self.remat)
        if not (self.keeps_gradients or _has_own_gradients(config)):
            if self.microbatches > 1:
                fitted.learner.gradients = Accumulate.Config(microbatches=self.microbatches)
            elif isinstance(fitted.learner.gradients, Accumulate.Config):
                fitted.learner.gradients = Autodiff.Config()
        if self.offloads_optimizer:
            fitted.learner.optimizer_memory = HostMemory.Config()
        elif isinstance(getattr(fitted.learner, "optimizer_memory", None), HostMemory.Config):
            fitted.learner.optimizer_memory = DeviceMemory.Config()
        sizes: dict[str, Any] = dict(self.sizes())
        fitted.mesh = MeshLayout.Config(**sizes)
        return fitted

    def __str__(self) -> str:
        mesh = " x ".join(f"{axis} {size}" for axis, size in self.mesh if size > 1)
        return ", ".join([f"mesh {mesh or 'of one device'}", *self.modifiers()])


def candidates(work: Workload, config: Trainer.Config, machine: Machine) -> Iterator[Candidate]:
    """Yields every mesh that divides, with every remat policy and number of microbatches.

    A pipeline keeps its stages and microbatches.
    """
    from dovetail.layers import Stack

    policies = REMAT_POLICIES if find(config, Stack) is not None else (None,)
    stages = config.mesh.build().shape(machine.devices)["pipeline"]
    meshes = [mesh for mesh in _meshes(work, machine, stages) if _divides(work, mesh)]
    own = _has_own_gradients(config)
    for mesh, policy, microbatches, offloads in itertools.product(
        meshes, policies, _microbatches(config), (False, True)
    ):
        found = Candidate(tuple(mesh.items()), policy, microbatches, offloads, own)
        if work.size.batch_size % (found.batch_shards * microbatches) == 0:
            yield found


def configured_candidate(config: Trainer.Config, machine: Machine) -> Candidate:
    """Returns the current choices of a config; `remat` is None, so its policy stays as it is."""
    from dovetail.parallel import HostMemory

    learner: Any = config.learner
    mesh = config.mesh.build().shape(machine.devices)
    memory = getattr(learner, "optimizer_memory", None)
    return Candidate(
        tuple(mesh.items()),
        None,
        int(getattr(getattr(learner, "gradients", None), "microbatches", 1)),
        isinstance(memory, HostMemory.Config),
        _has_own_gradients(config),
    )


def _microbatches(config: Trainer.Config) -> Iterable[int]:
    """Returns the numbers of microbatches to try; a pipeline keeps its own."""
    if not _has_own_gradients(config):
        return [2**power for power in range(_MAX_MICROBATCHES.bit_length())]
    return [int(getattr(getattr(config.learner, "gradients", None), "microbatches", 1))]


def _has_own_gradients(config: Trainer.Config) -> bool:
    """Returns whether gradients are computed other than by autodiff or accumulation."""
    from dovetail.learner import Accumulate, Autodiff

    gradients = getattr(config.learner, "gradients", None)
    return not isinstance(gradients, Autodiff.Config | Accumulate.Config)


def _meshes(work: Workload, machine: Machine, stages: int) -> Iterator[dict[str, int]]:
    """Yields the meshes of powers of two; only data crosses slices."""
    per_slice, left = divmod(machine.devices_per_slice, stages)
    if left:
        return
    experts = work.size.divisors.get("expert", 1)
    for model, expert, sequence in itertools.product(
        _powers_of_two(min(_MAX_MODEL_PARALLELISM, per_slice)),
        _powers_of_two(math.gcd(experts, per_slice)) if experts > 1 else [1],
        _powers_of_two(min(_MAX_SEQUENCE_PARALLELISM, per_slice)),
    ):
        rest, left = divmod(per_slice, model * expert * sequence)
        if left or not rest:
            continue
        for fsdp in _powers_of_two(rest):
            if rest % fsdp == 0:
                data = machine.slices * rest // fsdp
                sizes = dict.fromkeys(MESH_AXES, 1)
                yield sizes | {
                    "pipeline": stages,
                    "data": data,
                    "fsdp": fsdp,
                    "expert": expert,
                    "sequence": sequence,
                    "model": model,
                }


def _powers_of_two(most: int) -> list[int]:
    return [2**power for power in range(max(1, most).bit_length())]


def _divides(work: Workload, mesh: Mapping[str, int]) -> bool:
    """Returns whether every parameter, head and sequence divides over a mesh."""
    size = work.size
    if size.sequence_length % mesh["sequence"]:
        return False
    # Sequences are sharded only if there are too few of them.
    if mesh["sequence"] > 1 and size.batch_size % (mesh["data"] * mesh["fsdp"] * 2) == 0:
        return False
    if not size.divides(mesh["model"], ("heads", "kv_heads", "mlp", "vocab")):
        return False
    devices = abstract_mesh(mesh)
    return all(
        _parameter_divides(work, path, spec, devices) for path, spec in work.parameters.items()
    )


def _parameter_divides(work: Workload, path: str, spec: Any, devices: Any) -> bool:
    axes = work.rules.for_parameter(path, spec.axes)
    names, mesh = work.rules.mesh_axes(axes, devices), devices.shape
    return all(
        size % math.prod(mesh[name] for name in axes) == 0
        for size, axes in zip(spec.shape, names, strict=True)
    )


def abstract_mesh(sizes: Mapping[str, int]) -> AbstractMesh:
    """Returns a mesh without devices."""
    return AbstractMesh(tuple(sizes.values()), tuple(sizes))
