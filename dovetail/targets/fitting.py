"""The arithmetic that rules share: a mesh, what is kept for the backward pass, and micro-batches.

These are first guesses from sizes alone, made so that they agree with what is known to work (see
docs/targets.md). `key=value` comes after a rule, so each can be set otherwise.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from dovetail.config import Config, ConfigOf, visit
from dovetail.targets.machine import Machine
from dovetail.targets.registry import LABEL
from dovetail.targets.size import ExperimentSize

if TYPE_CHECKING:
    from dovetail.parallel import MeshLayout, Remat
    from dovetail.trainer import Trainer

# The share of a device's memory that parameters, gradients and optimizer may take. Split further,
# they would have to be gathered over more devices; the rest of the memory is for activations.
_STATE_SHARE = 1 / 32
# The share that may go to what the forward pass keeps for the backward pass.
_KEPT_SHARE = 0.55
# Everything that a layer computes, against the results of its products with weights alone.
_ALL_TO_PRODUCTS = 3

_MODEL_AXES = ("heads", "kv_heads", "mlp", "vocab")


@dataclass(frozen=True)
class Fit:
    """How an experiment is split over a machine."""

    data: int
    fsdp: int
    expert: int
    model: int
    slices: int

    @property
    def shards(self) -> int:
        """Into how many parts the batch is split."""
        return self.data * self.fsdp * self.expert

    def layout(self) -> MeshLayout.Config:
        """Returns the mesh; the outer one of the axes that matter takes what is left."""
        from dovetail.parallel import MeshLayout

        inner: dict[str, Any] = {
            name: size
            for name, size in (("expert", self.expert), ("model", self.model))
            if size > 1
        }
        if self.data == self.slices:  # parameters are split over a whole slice
            return MeshLayout.Config(data=self.data, fsdp=-1, **inner)
        return MeshLayout.Config(data=-1, fsdp=self.fsdp, **inner)


def fit_mesh(size: ExperimentSize, machine: Machine, model: int = 1) -> Fit:
    """Splits parameters over as few neighbours as their memory allows, and the batch over the rest.

    `model` is how many devices should share each layer's products; it is lowered where heads or
    other sizes do not divide, and raised where there are more devices than sequences.
    """
    per_slice = machine.devices_per_slice
    model = _model_parts(size, machine, model)
    room = _STATE_SHARE * machine.memory_per_device
    wanted = size.state_bytes / (room * model)
    divisor = math.gcd(size.divisors.get("embed", 1), size.divisors.get("rank", 0))
    fsdp = _parts(wanted, per_slice // model, divisor)
    expert = _parts(wanted / fsdp, per_slice // (model * fsdp), size.divisors.get("expert", 1))
    data = machine.devices // (model * fsdp * expert)
    return Fit(data, fsdp, expert, model, machine.slices)


def apply_fit(config: Trainer.Config, size: ExperimentSize, machine: Machine, fit: Fit) -> Any:
    """Sets the mesh, micro-batches where activations ask for them, and what is kept.

    What somebody asked for stays: stacks whose `remat` is set, and gradients made in another way.
    """
    from dovetail.layers import Stack

    config.mesh = fit.layout()
    stacks = [part for _, part in visit(config, whole=False) if isinstance(part, Stack.Config)]
    asked = [stack.remat for stack in stacks if _is_asked(stack, "remat")]
    parts = _microbatches(size, machine, fit, asked)
    if parts > 1:
        config = _accumulated(config, parts)
    for stack in stacks:
        if not _is_asked(stack, "remat"):
            stack.remat = _remat(size, machine, fit, parts)
    return config


def _is_asked(part: Config[Any], field: str) -> bool:
    """Says whether somebody set a field, other than a rule: what one chose, the next may change."""
    origin = part.get_origin(field)
    by_rule = origin is not None and any(label.startswith(LABEL) for label in origin.through)
    return part.is_set(field) and not by_rule


def _model_parts(size: ExperimentSize, machine: Machine, wanted: int) -> int:
    """Returns the number of devices that share a layer: as wanted, or as near as can be."""
    most = max(wanted, min(machine.devices_per_slice, machine.chip.linked_chips, 8))
    allowed = [
        parts
        for parts in _powers(min(most, machine.devices_per_slice))
        if size.divides(parts, _MODEL_AXES) and machine.devices_per_slice % parts == 0
    ]
    below = max(parts for parts in allowed if parts <= wanted)
    enough = [
        parts for parts in allowed if parts >= below and _splits(size, machine.devices // parts)
    ]
    return enough[0] if enough else below


def _splits(size: ExperimentSize, shards: int) -> bool:
    return size.batch_size % shards == 0


def _parts(wanted: float, most: int, divisor: int) -> int:
    """Returns the smallest power of two that is enough, or else the largest that is possible."""
    possible = [parts for parts in _powers(most) if most % parts == 0 and divisor % parts == 0]
    return next((parts for parts in possible if parts >= wanted), possible[-1])


def _powers(most: int) -> list[int]:
    return [2**power for power in range(max(1, most).bit_length())]


def _tokens(size: ExperimentSize, fit: Fit) -> float:
    """Returns how many tokens of a step each shard of the batch has."""
    return size.batch_size * size.sequence_length / fit.shards


def _products(size: ExperimentSize, fit: Fit) -> float:
    """Returns the bytes of all results of products with weights, of a step, on each device."""
    shared = (size.outputs_per_token - size.stream_outputs_per_token) / fit.model
    return (shared + size.stream_outputs_per_token) * size.number_bytes * _tokens(size, fit)


def _microbatches(
    size: ExperimentSize, machine: Machine, fit: Fit, asked: Sequence[ConfigOf[Remat]]
) -> int:
    """Returns into how many parts a batch goes through, so that what is kept fits in memory.

    Layers' inputs are kept whatever a policy says; more, where policies were asked for.
    """
    inputs = size.layers * size.width * size.number_bytes * _tokens(size, fit)
    kept = max([2 * inputs, *(_kept(policy, _products(size, fit)) for policy in asked)])
    parts = 1
    while (
        kept / parts > _KEPT_SHARE * machine.memory_per_device
        and size.batch_size % (2 * parts * fit.shards) == 0
    ):
        parts *= 2
    return parts


def _kept(policy: ConfigOf[Remat], products: float) -> float:
    """Returns the bytes that a policy keeps; of lists of tags nothing is known, so they are 0."""
    from dovetail.parallel import KeepAll, KeepDots

    if isinstance(policy, KeepAll.Config):
        return _ALL_TO_PRODUCTS * products
    return products if isinstance(policy, KeepDots.Config) else 0.0


def _accumulated(config: Trainer.Config, parts: int) -> Trainer.Config:
    """Splits the batch, unless the experiment says itself how gradients are made."""
    from dovetail.learner import Accumulate, Autodiff

    learner: Any = config.learner
    if isinstance(getattr(learner, "gradients", None), Autodiff.Config):
        learner.gradients = Accumulate.Config(microbatches=parts)
    return config


def _remat(size: ExperimentSize, machine: Machine, fit: Fit, microbatches: int) -> Any:
    """Keeps as much as its share of the memory holds."""
    from dovetail.parallel import KeepAll, KeepDots, KeepNothing, KeepTags

    products = _products(size, fit) / microbatches
    room = _KEPT_SHARE * machine.memory_per_device
    if _ALL_TO_PRODUCTS * products <= room:
        return KeepAll.Config()
    if products <= room:
        return KeepDots.Config()
    if products / 2 <= room:
        # Attention costs most to compute again, the first product of a feed-forward next.
        return KeepTags.Config(names=("attention_output", "feed_forward_gate"))
    return KeepNothing.Config()
