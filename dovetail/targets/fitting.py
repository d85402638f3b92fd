"""The arithmetic that rules share: mesh shape, microbatches and remat within the HBM budget.

These are first guesses from sizes alone. They agree with set-ups that are known to work well (see
docs/targets.md). `key=value` is applied after a rule, so each can be overridden.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from dovetail.config import Config, ConfigOf, visit
from dovetail.targets.machine import Machine
from dovetail.targets.rule import LABEL
from dovetail.targets.size import ExperimentSize

if TYPE_CHECKING:
    from dovetail.parallel import MeshLayout, Remat
    from dovetail.trainer import Trainer

# The share of HBM for parameters, gradients and optimizer state. Sharding them further would gather
# over more devices; the rest of HBM is for activations.
_STATE_SHARE = 1 / 32
# The share of HBM for saved activations.
_SAVED_SHARE = 0.55
# All activations of a layer, relative to the outputs of its matmuls with weights.
_ALL_TO_MATMUL_OUTPUTS = 3

_MODEL_AXES = ("heads", "kv_heads", "mlp", "vocab")


@dataclass(frozen=True)
class MeshShape:
    """The sizes of the mesh axes that a rule chooses."""

    data: int
    fsdp: int
    expert: int
    model: int
    slices: int

    @property
    def batch_shards(self) -> int:
        """The number of shards of the global batch."""
        return self.data * self.fsdp * self.expert

    def mesh_config(self) -> MeshLayout.Config:
        """Returns the mesh, with -1 for the outermost axis that matters."""
        from dovetail.parallel import MeshLayout

        inner: dict[str, Any] = {
            name: size
            for name, size in (("expert", self.expert), ("model", self.model))
            if size > 1
        }
        if self.data == self.slices:  # parameters are sharded over all of a slice
            return MeshLayout.Config(data=self.data, fsdp=-1, **inner)
        return MeshLayout.Config(data=-1, fsdp=self.fsdp, **inner)


def choose_mesh(size: ExperimentSize, machine: Machine, model: int = 1) -> MeshShape:
    """Shards parameters over as few devices as their memory allows, and the batch over the rest.

    `model` is the wanted degree of tensor parallelism. It is lowered if heads or other sizes do not
    divide, and raised if there are more devices than examples.
    """
    per_slice = machine.devices_per_slice
    model = _model_parallelism(size, machine, model)
    budget = _STATE_SHARE * machine.memory_per_device
    wanted = size.state_bytes / (budget * model)
    divisor = math.gcd(size.divisors.get("embed", 1), size.divisors.get("rank", 0))
    fsdp = _axis_size(wanted, per_slice // model, divisor)
    expert = _axis_size(wanted / fsdp, per_slice // (model * fsdp), size.divisors.get("expert", 1))
    data = machine.devices // (model * fsdp * expert)
    return MeshShape(data, fsdp, expert, model, machine.slices)


def fit_experiment(
    config: Trainer.Config, size: ExperimentSize, machine: Machine, mesh: MeshShape
) -> Trainer.Config:
    """Sets the mesh, and the microbatches and remat policy that fit the HBM budget.

    It keeps explicit choices: stacks whose `remat` is set, and gradients other than plain autodiff.
    """
    from dovetail.layers import Stack

    config.mesh = mesh.mesh_config()
    stacks = [node for _, node in visit(config, opaque=False) if isinstance(node, Stack.Config)]
    explicit = [stack.remat for stack in stacks if _is_explicit(stack, "remat")]
    microbatches = _microbatches(size, machine, mesh, explicit)
    if microbatches > 1:
        config = _with_accumulation(config, microbatches)
    for stack in stacks:
        if not _is_explicit(stack, "remat"):
            stack.remat = _remat(size, machine, mesh, microbatches)
    return config


def _is_explicit(node: Config[Any], field: str) -> bool:
    """Returns whether anyone but a rule set a field; rules may change the choices of rules."""
    origin = node.get_origin(field)
    by_rule = origin is not None and any(label.startswith(LABEL) for label in origin.through)
    return node.is_set(field) and not by_rule


def _model_parallelism(size: ExperimentSize, machine: Machine, wanted: int) -> int:
    """Returns the degree of tensor parallelism that is possible and nearest to the wanted one."""
    most = max(wanted, min(machine.devices_per_slice, machine.chip.linked_chips, 8))
    possible = [
        degree
        for degree in _powers_of_two(min(most, machine.devices_per_slice))
        if size.divides(degree, _MODEL_AXES) and machine.devices_per_slice % degree == 0
    ]
    below = max(degree for degree in possible if degree <= wanted)
    enough = [
        degree
        for degree in possible
        if degree >= below and size.batch_size % (machine.devices // degree) == 0
    ]
    return enough[0] if enough else below


def _axis_size(wanted: float, most: int, divisor: int) -> int:
    """Returns the smallest power of two that is at least `wanted`, or else the largest possible."""
    possible = [n for n in _powers_of_two(most) if most % n == 0 and divisor % n == 0]
    return next((n for n in possible if n >= wanted), possible[-1])


def _powers_of_two(most: int) -> list[int]:
    return [2**power for power in range(max(1, most).bit_length())]


def _tokens_per_shard(size: ExperimentSize, mesh: MeshShape) -> float:
    return size.batch_size * size.sequence_length / mesh.batch_shards


def _matmul_output_bytes(size: ExperimentSize, mesh: MeshShape) -> float:
    """Returns the bytes per device and step of the outputs of all matmuls with weights."""
    sharded = (size.outputs_per_token - size.residual_outputs_per_token) / mesh.model
    outputs = sharded + size.residual_outputs_per_token
    return outputs * size.bytes_per_element * _tokens_per_shard(size, mesh)


def _microbatches(
    size: ExperimentSize, machine: Machine, mesh: MeshShape, explicit: Sequence[ConfigOf[Remat]]
) -> int:
    """Returns how many microbatches make saved activations fit.

    Every policy saves the inputs of layers; explicit policies may save more.
    """
    inputs = size.layers * size.width * size.bytes_per_element * _tokens_per_shard(size, mesh)
    outputs = _matmul_output_bytes(size, mesh)
    saved = max([2 * inputs, *(_saved_bytes(policy, outputs) for policy in explicit)])
    count = 1
    while (
        saved / count > _SAVED_SHARE * machine.memory_per_device
        and size.batch_size % (2 * count * mesh.batch_shards) == 0
    ):
        count *= 2
    return count


def _saved_bytes(policy: ConfigOf[Remat], matmul_outputs: float) -> float:
    """Returns the bytes that a policy saves; lists of names are not estimated and count as 0."""
    from dovetail.parallel import SaveAll, SaveDots

    if isinstance(policy, SaveAll.Config):
        return _ALL_TO_MATMUL_OUTPUTS * matmul_outputs
    return matmul_outputs if isinstance(policy, SaveDots.Config) else 0.0


def _with_accumulation(config: Trainer.Config, microbatches: int) -> Trainer.Config:
    """Accumulates gradients over microbatches, unless the experiment chose its own gradients."""
    from dovetail.learner import Accumulate, Autodiff

    learner: Any = config.learner
    if isinstance(getattr(learner, "gradients", None), Autodiff.Config):
        learner.gradients = Accumulate.Config(microbatches=microbatches)
    return config


def _remat(size: ExperimentSize, machine: Machine, mesh: MeshShape, microbatches: int) -> Any:
    """Returns the policy that saves as much as the budget holds."""
    from dovetail.parallel import SaveAll, SaveDots, SaveNamed, SaveNothing

    outputs = _matmul_output_bytes(size, mesh) / microbatches
    budget = _SAVED_SHARE * machine.memory_per_device
    if _ALL_TO_MATMUL_OUTPUTS * outputs <= budget:
        return SaveAll.Config()
    if outputs <= budget:
        return SaveDots.Config()
    if outputs / 2 <= budget:
        # Attention costs most to recompute, the first matmul of a feed-forward next.
        return SaveNamed.Config(names=("attention_output", "feed_forward_gate"))
    return SaveNothing.Config()
