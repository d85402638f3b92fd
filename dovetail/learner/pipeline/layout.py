"""How a model's parameters lie in a pipeline: by parts of the longest stack, or on every device."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import jax

from dovetail.config import ConfigError
from dovetail.learner.pipeline.stage import Staged
from dovetail.learner.state import Arrays
from dovetail.module import Module, parameter_specs, variable_specs
from dovetail.parallel import Rounds, current_placement

Axes = tuple[str | None, ...]
# The logical axis that layers stand along which a pipeline splits.
_AXIS = "stage"


@dataclass(frozen=True)
class Layout:
    """Which arrays are split over the stages, and into what.

    Attributes:
        schedule: stages and rounds.
        model: the model with one part of its layers.
        layers: how many layers that is.
        axes: the logical axes of parameters and variables, by path.
    """

    schedule: Rounds
    model: Module
    layers: int
    axes: Mapping[str, Axes]

    @classmethod
    def of(cls, model: Module, schedule: Rounds) -> Layout:
        """Splits a model; one that cannot be split is an error that says why."""
        if not isinstance(model, Staged):
            raise ConfigError(
                f"{type(model).__name__} cannot be split over the stages of a pipeline: it needs "
                "the methods begin, middle, end and part. Set mesh.pipeline=1."
            )
        specs = {**parameter_specs(model), **variable_specs(model)}
        axes = {path: spec.axes for path, spec in specs.items()}
        own = [path for path in axes if _is_own(axes[path])]
        if not own:
            raise ConfigError(
                f"No stack of this {type(model).__name__} has layers with parameters of their own, "
                "so a pipeline has nothing to split. Set mesh.pipeline=1."
            )
        parts = schedule.stages * schedule.rounds
        count = specs[min(own)].shape[0]
        return cls(schedule, model.part(parts), count // parts, axes)

    def split(self, arrays: Mapping[str, Any]) -> tuple[Arrays, Arrays]:
        """Returns what stages have parts of, as [rounds, stages, layers, ...], and the rest."""
        sizes = (self.schedule.rounds, self.schedule.stages, self.layers)
        own = {
            path: value.reshape(*sizes, *value.shape[1:])
            for path, value in arrays.items()
            if _is_own(self.axes[path])
        }
        return own, {path: value for path, value in arrays.items() if path not in own}

    def joined(self, arrays: Arrays) -> Arrays:
        """Returns [rounds, stages, layers, ...] as one stack again, where parameters lie.

        With several rounds layers change devices. Said here, it happens once; otherwise XLA
        computes with a gradient first and moves each of the results.
        """
        return self.placed(
            {path: value.reshape(-1, *value.shape[3:]) for path, value in arrays.items()}
        )

    def placed(self, arrays: Arrays) -> Arrays:
        """Returns arrays split as their parameters are; on a device of the pipeline, by the rest.

        Gradients are added up in a loop, inside of which XLA would otherwise keep them whole.
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
        """Returns the variables of the layers; others have no stage that would keep them."""
        own, others = self.split(variables)
        if others:
            raise ConfigError(
                f"A pipeline keeps variables of the longest stack only, and there are others: "
                f"{', '.join(sorted(others))}. Set mesh.pipeline=1."
            )
        return own


def _is_own(axes: Axes) -> bool:
    """Says whether each stage has a part of an array."""
    return axes[:1] == (_AXIS,)


def drop_stage(arrays: Arrays) -> Arrays:
    """Takes away the axis of stages, which is 1 on a device."""
    return jax.tree.map(lambda leaf: leaf.squeeze(1), arrays)


def add_stage(arrays: Arrays) -> Arrays:
    """Puts it back."""
    return jax.tree.map(lambda leaf: leaf[:, None], arrays)
