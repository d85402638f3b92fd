"""How large an experiment is, read from its specs: what rules may decide by."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from dovetail.config import visit

if TYPE_CHECKING:
    from dovetail.trainer import Trainer

# What training holds for each parameter in float32: itself, its gradient and two moments.
STATE_BYTES = 16

# Fields of layers' configs whose number is the size of a logical axis of activations.
_COUNTS = {"num_heads": "heads", "num_kv_heads": "kv_heads"}


@dataclass(frozen=True)
class ExperimentSize:
    """The sizes of an experiment.

    Attributes:
        parameters: how many there are.
        active_parameters: how many of them one token uses.
        batch_size: sequences a step.
        sequence_length: tokens a sequence.
        layers: turns of the loops over layers; each keeps its input for the backward pass.
        width: of the vectors between layers.
        outputs_per_token: how many numbers the products with weights give for one token.
        stream_outputs_per_token: how many of those are added to the stream between layers, which
            devices that share a layer each hold whole.
        number_bytes: the size of one of those numbers.
        divisors: the largest number that divides all sizes of a logical axis.
    """

    parameters: int
    active_parameters: int
    batch_size: int
    sequence_length: int
    layers: int
    width: int
    outputs_per_token: int
    stream_outputs_per_token: int
    number_bytes: int
    divisors: Mapping[str, int]

    @property
    def state_bytes(self) -> int:
        """What parameters, gradients and optimizer take, before anything is split."""
        return STATE_BYTES * self.parameters

    def divides(self, parts: int, axes: Iterable[str]) -> bool:
        """Says whether every array can be split into so many parts along these logical axes."""
        return all(self.divisors.get(axis, parts) % parts == 0 for axis in axes)


def weigh(config: Trainer.Config) -> ExperimentSize:
    """Returns the sizes of an experiment; no array is made."""
    from dovetail.module import parameter_specs

    trainer = config.build()
    specs = parameter_specs(trainer.model)
    batch, sequence = trainer.input.spec().tokens.shape
    matrices = [spec for spec in specs.values() if spec.is_matrix]
    low = trainer.model.compute_dtype in ("bfloat16", "float16")
    return ExperimentSize(
        parameters=sum(spec.size for spec in specs.values()),
        active_parameters=sum(spec.active_size for spec in specs.values()),
        batch_size=batch,
        sequence_length=sequence,
        layers=_layers(specs),
        width=max(_sizes(specs, "embed"), default=1),
        outputs_per_token=sum(map(_outputs, matrices)),
        stream_outputs_per_token=sum(_outputs(spec) for spec in matrices if _gives_stream(spec)),
        number_bytes=2 if low else 4,
        divisors=_divisors(specs, config),
    )


def _sizes(specs: Mapping[str, Any], axis: str) -> list[int]:
    return [
        size
        for spec in specs.values()
        for name, size in zip(spec.axes, spec.shape, strict=True)
        if name == axis
    ]


def _outputs(spec: Any) -> int:
    """Returns how many numbers one token gets from a matrix, in all layers that have it."""
    return int(spec.active_size // math.prod(spec.layer_shape[axis] for axis in spec.fan_in))


def _gives_stream(spec: Any) -> bool:
    """Says whether a matrix gives vectors of the width between layers."""
    axes = spec.axes[len(spec.axes) - len(spec.layer_shape) :]
    return any(axes[axis] == "embed" for axis in spec.fan_out)


def _layers(specs: Mapping[str, Any]) -> int:
    """Adds up the outermost loops over layers, each known by its path."""
    from dovetail.layers import LAYER_AXES

    loops: dict[str, int] = {}
    for path, spec in specs.items():
        if spec.stacked and spec.axes[0] in LAYER_AXES:
            loops["/".join(path.split("/")[: spec.depths[0]])] = spec.shape[0]
    return max(1, sum(loops.values()))


def _divisors(specs: Mapping[str, Any], config: Any) -> dict[str, int]:
    names = {name for spec in specs.values() for name in spec.axes if name is not None}
    sizes = {name: _sizes(specs, name) for name in names}
    for _, part in visit(config.model):
        for field, axis in _COUNTS.items():
            value = getattr(part, field) if field in part.fields() else None
            if isinstance(value, int):
                sizes.setdefault(axis, []).append(value)
    return {name: math.gcd(*found) for name, found in sizes.items()}
