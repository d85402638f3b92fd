"""What all pipelines share: the split of model and batch over stages, and the `shard_map`."""

from __future__ import annotations

from typing import Any

import jax
from jax.sharding import PartitionSpec

from dovetail.config import REQUIRED, Component, ConfigError
from dovetail.learner.accumulate import Accumulate, split_batch, step_loss_weights
from dovetail.learner.gradients import GradientResult
from dovetail.learner.pipeline.layout import StageLayout, add_stage_axis, drop_stage_axis
from dovetail.learner.pipeline.runner import StageRunner
from dovetail.learner.pipeline.stage import PIPELINE, Stage
from dovetail.learner.state import Arrays
from dovetail.module import Module
from dovetail.parallel import PipelineSchedule, current_placement


class Pipeline(Component):
    """Computes gradients with the layers sharded over the mesh axis `pipeline`.

    On a mesh without that axis it accumulates gradients, which gives the same result.
    """

    class Config(Component.Config["Pipeline"]):
        """The number of microbatches, and how often each goes around the stages.

        With `repeats` above 1 each device holds as many shorter chunks of layers (an interleaved
        schedule): the bubble is smaller, and more is sent between devices.
        """

        microbatches: int = REQUIRED
        repeats: int = 1

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        for name in ("microbatches", "repeats"):
            if getattr(config, name) < 1:
                raise ConfigError(
                    f"{config.locate(name)}: expected 1 or more, got {getattr(config, name)}."
                )
        self.microbatches, self.repeats = config.microbatches, config.repeats
        self.key = config.locate("microbatches")

    def __call__(
        self,
        model: Module,
        trainable: Arrays,
        frozen: Arrays,
        variables: Arrays,
        batch: Any,
        key: jax.Array,
        step: jax.Array,
    ) -> GradientResult:
        """Returns the gradients of the batch."""
        stacked_batch = split_batch(batch, self.microbatches, self.key)
        placement = current_placement()
        stages = 1 if placement is None else placement.mesh.shape[PIPELINE]
        if placement is None or stages == 1:
            accumulate = Accumulate.Config(microbatches=self.microbatches).build()
            return accumulate(model, trainable, frozen, variables, batch, key, step)
        layout = StageLayout.of(model, PipelineSchedule(stages, self.microbatches, self.repeats))
        params = {**frozen, **trainable}
        weights = step_loss_weights(model, params, variables, stacked_batch, key)

        def on_stage(stage: Arrays, variables: Arrays, shared: Arrays, *rest: Any) -> Any:
            stacked_batch, weights, key = rest
            chunk = Stage(layout.model, layout.layers, stages * self.repeats, key, weights)
            index = jax.lax.axis_index(PIPELINE)
            runner = StageRunner(
                chunk, layout, index, stacked_batch, drop_stage_axis(stage), shared, trainable
            )
            gradients, shared_gradients, outputs, after = self.run(
                runner, drop_stage_axis(variables)
            )
            summed = jax.tree.map(lambda leaf: jax.lax.psum(leaf, PIPELINE), shared_gradients)
            return add_stage_axis(gradients), add_stage_axis(after), summed, outputs

        sharded, replicated = PartitionSpec(None, PIPELINE), PartitionSpec()
        stage, shared = layout.split(params)
        gradients, after, shared_gradients, (losses, summaries) = jax.shard_map(
            on_stage,
            in_specs=(sharded, sharded, replicated, replicated, replicated, replicated),
            out_specs=(sharded, sharded, replicated, replicated),
            mesh=placement.mesh,
            axis_names={PIPELINE},
            check_vma=False,
        )(stage, layout.split_variables(variables), shared, stacked_batch, weights, key)
        return GradientResult(
            gradients={**layout.join(gradients), **shared_gradients},
            losses=losses,
            summaries=summaries,
            variables=layout.join(after),
        )

    def stage_axes(self) -> tuple[str, ...]:
        """Returns the axis of its stages."""
        return (PIPELINE,)

    def run(self, runner: StageRunner, variables: Arrays) -> tuple[Arrays, Arrays, Any, Arrays]:
        """Returns a stage's gradients, those of shared parameters, outputs, and variables."""
        raise NotImplementedError
