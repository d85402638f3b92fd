"""The size of an experiment, read from its parameter specs. Rules decide by it."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from dovetail.config import visit

if TYPE_CHECKING:
    from dovetail.module import Module
    from dovetail.trainer import Trainer

# Training holds four float32 values per parameter: itself, its gradient and two moments.
STATE_BYTES_PER_PARAMETER = 16

# Fields of layer configs that give the size of a logical axis of activations.
_AXIS_OF_FIELD = {"num_heads": "heads", "num_kv_heads": "kv_heads"}


@dataclass(frozen=True)
class ExperimentSize:
    """The sizes of an experiment.

    Attributes:
        parameters: the number of parameters.
        active_parameters: the number that one token uses.
        batch_size: examples of the global batch.
        sequence_length: the longest `sequence` axis of the batch; 1 if it has none, so that an
            example counts as one token.
        layers: iterations of the scans over layers; each saves its input for the backward pass.
        width: of the residual stream.
        outputs_per_token: elements that matmuls with weights produce for one token.
        residual_outputs_per_token: how many of those are added to the residual stream, which is
            replicated over `model`.
        bytes_per_element: of an activation.
        divisors: for each logical axis, the greatest common divisor of its sizes.
    """

    parameters: int
    active_parameters: int
    batch_size: int
    sequence_length: int
    layers: int
    width: int
    outputs_per_token: int
    residual_outputs_per_token: int
    bytes_per_element: int
    divisors: Mapping[str, int]

    @property
    def state_bytes(self) -> int:
        """The bytes of parameters, gradients and optimizer, unsharded."""
        return STATE_BYTES_PER_PARAMETER * self.parameters

    def divides(self, shards: int, axes: Iterable[str]) -> bool:
        """Returns whether the sizes of all these logical axes divide into that many shards."""
        return all(self.divisors.get(axis, shards) % shards == 0 for axis in axes)


def config_size(config: Trainer.Config) -> ExperimentSize:
    """Returns the sizes of an experiment; of its components, it builds only input and model."""
    from dovetail.trainer import build_model

    source = config.input.build()
    return experiment_size(build_model(config.model, source), source.spec())


def experiment_size(model: Module, batch: Any) -> ExperimentSize:
    """Returns the sizes of a built model and a batch spec; no array is allocated."""
    import jax

    from dovetail.module import batch_size, parameter_specs

    specs = parameter_specs(model)
    leaves = dict(enumerate(jax.tree.leaves(batch)))
    matrices = [spec for spec in specs.values() if spec.is_matrix]
    is_half = model.compute_dtype in ("bfloat16", "float16")
    return ExperimentSize(
        parameters=sum(spec.size for spec in specs.values()),
        active_parameters=sum(spec.active_size for spec in specs.values()),
        batch_size=batch_size(batch),
        sequence_length=max(_sizes(leaves, "sequence"), default=1),
        layers=_layers(specs),
        width=max(_sizes(specs, "embed"), default=1),
        outputs_per_token=sum(map(_outputs, matrices)),
        residual_outputs_per_token=sum(
            _outputs(spec) for spec in matrices if _writes_residual_stream(spec)
        ),
        bytes_per_element=2 if is_half else 4,
        divisors=_divisors(specs, model.config),
    )


def _sizes(specs: Mapping[Any, Any], axis: str) -> list[int]:
    return [
        size
        for spec in specs.values()
        for name, size in zip(spec.axes, spec.shape, strict=True)
        if name == axis
    ]


def _outputs(spec: Any) -> int:
    """Returns the elements that a matrix produces for one token, over all its layers."""
    return int(spec.active_size // math.prod(spec.layer_shape[axis] for axis in spec.fan_in))


def _writes_residual_stream(spec: Any) -> bool:
    axes = spec.axes[len(spec.axes) - len(spec.layer_shape) :]
    return any(axes[axis] == "embed" for axis in spec.fan_out)


def _layers(specs: Mapping[str, Any]) -> int:
    """Sums the lengths of the outermost scans over layers."""
    from dovetail.layers import LAYER_AXES

    scans: dict[str, int] = {}
    for path, spec in specs.items():
        if spec.stacked and spec.axes[0] in LAYER_AXES:
            scans["/".join(path.split("/")[: spec.depths[0]])] = spec.shape[0]
    return max(1, sum(scans.values()))


def _divisors(specs: Mapping[str, Any], model: Any) -> dict[str, int]:
    names = {name for spec in specs.values() for name in spec.axes if name is not None}
    sizes = {name: _sizes(specs, name) for name in names}
    for _, node in visit(model):
        for field, axis in _AXIS_OF_FIELD.items():
            value = getattr(node, field) if field in node.fields() else None
            if isinstance(value, int):
                sizes.setdefault(axis, []).append(value)
    return {name: math.gcd(*found) for name, found in sizes.items()}
