"""The layout of a pipeline: the longest stack is sharded over stages, the rest replicated."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import jax

from dovetail.config import ConfigError
from dovetail.learner.pipeline.stage import PipelineModel
from dovetail.learner.state import Arrays
from dovetail.module import Module, parameter_specs, variable_specs
from dovetail.parallel import PipelineSchedule, current_placement

Axes = tuple[str | None, ...]
# The logical axis of the layers that a pipeline shards.
_AXIS = "stage"


@dataclass(frozen=True)
class StageLayout:
    """Which arrays are sharded over the stages, and how.

    Attributes:
        schedule: the number of stages and repeats.
        model: the model with one chunk of its layers.
        layers: the number of layers in a chunk.
        axes: the logical axes of parameters and variables, by path.
    """

    schedule: PipelineSchedule
    model: Module
    layers: int
    axes: Mapping[str, Axes]

    @classmethod
    def of(cls, model: Module, schedule: PipelineSchedule) -> StageLayout:
        """Splits a model into chunks; the error for one that cannot be split says why."""
        if not isinstance(model, PipelineModel):
            raise ConfigError(
                f"{type(model).__name__} cannot be split into pipeline stages: it needs the "
                "methods embed, run_layers, head_loss and stage_model. Set mesh.pipeline=1."
            )
        specs = {**parameter_specs(model), **variable_specs(model)}
        axes = {path: spec.axes for path, spec in specs.items()}
        stacked = [path for path in axes if _is_staged(axes[path])]
        if not stacked:
            raise ConfigError(
                f"No stack of this {type(model).__name__} has layers with parameters of their own, "
                "so a pipeline has nothing to split. Set mesh.pipeline=1."
            )
        chunks = schedule.stages * schedule.repeats
        count = specs[min(stacked)].shape[0]
        return cls(schedule, model.stage_model(chunks), count // chunks, axes)

    def split(self, arrays: Mapping[str, Any]) -> tuple[Arrays, Arrays]:
        """Returns the stacked arrays as [repeats, stages, layers, ...], and the shared ones."""
        sizes = (self.schedule.repeats, self.schedule.stages, self.layers)
        stage = {
            path: value.reshape(*sizes, *value.shape[1:])
            for path, value in arrays.items()
            if _is_staged(self.axes[path])
        }
        return stage, {path: value for path, value in arrays.items() if path not in stage}

    def join(self, arrays: Arrays) -> Arrays:
        """Returns [repeats, stages, layers, ...] as stacked arrays, sharded as the parameters are.

        With repeats above 1 this moves layers between devices. The constraint makes XLA move each
        gradient once; otherwise it moves every result computed from it.
        """
        return self.constrain(
            {path: value.reshape(-1, *value.shape[3:]) for path, value in arrays.items()}
        )

    def constrain(self, arrays: Arrays) -> Arrays:
        """Constrains arrays to the sharding of their parameters, over the non-manual mesh axes.

        Gradients are summed in a loop, inside which XLA would otherwise replicate them.
        """
        placement = current_placement()
        if placement is None:
            return arrays
        return {
            path: jax.lax.with_sharding_constraint(
                value, placement.sharding(self.axes[path], value.shape, path)
            )
            for path, value in arrays.items()
        }

    def split_variables(self, variables: Mapping[str, Any]) -> Arrays:
        """Returns the variables of the layers; no stage could update others."""
        stage, others = self.split(variables)
        if others:
            raise ConfigError(
                f"A pipeline supports variables in the longest stack only, and there are others: "
                f"{', '.join(sorted(others))}. Set mesh.pipeline=1."
            )
        return stage


def _is_staged(axes: Axes) -> bool:
    return axes[:1] == (_AXIS,)


def drop_stage_axis(arrays: Arrays) -> Arrays:
    """Removes the stage axis, of size 1 on a device."""
    return jax.tree.map(lambda leaf: leaf.squeeze(1), arrays)


def add_stage_axis(arrays: Arrays) -> Arrays:
    """Adds the stage axis back."""
    return jax.tree.map(lambda leaf: leaf[:, None], arrays)
