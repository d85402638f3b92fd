"""What pipelines have in common: the split of model and batch, and what comes of it."""

from __future__ import annotations

from typing import Any

import jax
from jax.sharding import PartitionSpec

from dovetail.config import REQUIRED, ConfigError, Part
from dovetail.learner.accumulate import Accumulate, split_batch, weights_of_step
from dovetail.learner.gradients import Produced
from dovetail.learner.pipeline.layout import Layout, add_stage, drop_stage
from dovetail.learner.pipeline.stage import PIPELINE, Stage
from dovetail.learner.pipeline.work import Work
from dovetail.learner.state import Arrays
from dovetail.module import Module
from dovetail.parallel import Rounds, current_placement


class Pipeline(Part):
    """Produces gradients with the layers split over the mesh axis `pipeline`.

    On a mesh without that axis it accumulates, which gives the same.
    """

    class Config(Part.Config["Pipeline"]):
        """Into how many micro-batches a batch is split, and how often each goes around.

        With more `rounds` each device holds as many shorter parts of the layers: the pipeline fills
        sooner, and more is sent between devices.
        """

        microbatches: int = REQUIRED
        rounds: int = 1

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        for name in ("microbatches", "rounds"):
            if getattr(config, name) < 1:
                raise ConfigError(
                    f"{config.locate(name)}: expected 1 or more, got {getattr(config, name)}."
                )
        self.microbatches, self.rounds = config.microbatches, config.rounds
        self.key = config.locate("microbatches")

    def __call__(
        self,
        model: Module,
        trained: Arrays,
        fixed: Arrays,
        variables: Arrays,
        batch: Any,
        key: jax.Array,
    ) -> Produced:
        """Returns the gradients of the whole batch."""
        micro_K = split_batch(batch, self.microbatches, self.key)
        placement = current_placement()
        stages = 1 if placement is None else placement.mesh.shape[PIPELINE]
        if placement is None or stages == 1:
            plain = Accumulate.Config(microbatches=self.microbatches).build()
            return plain(model, trained, fixed, variables, batch, key)
        layout = Layout.of(model, Rounds(stages, self.microbatches, self.rounds))
        params = {**fixed, **trained}
        weights = weights_of_step(model, params, variables, micro_K, key)

        def local(own: Arrays, variables: Arrays, shared: Arrays, *rest: Any) -> Any:
            micro_K, weights, key = rest
            stage = Stage(layout.model, layout.layers, stages * self.rounds, key, weights)
            rank = jax.lax.axis_index(PIPELINE)
            work = Work(stage, layout, rank, micro_K, drop_stage(own), shared, trained)
            gradients, shared_gradients, told, after = self.run(work, drop_stage(variables))
            summed = jax.tree.map(lambda leaf: jax.lax.psum(leaf, PIPELINE), shared_gradients)
            return add_stage(gradients), add_stage(after), summed, told

        split, whole = PartitionSpec(None, PIPELINE), PartitionSpec()
        own, shared = layout.split(params)
        gradients, after, shared_gradients, (losses, summaries) = jax.shard_map(
            local,
            in_specs=(split, split, whole, whole, whole, whole),
            out_specs=(split, split, whole, whole),
            mesh=placement.mesh,
            axis_names={PIPELINE},
            check_vma=False,
        )(own, layout.split_variables(variables), shared, micro_K, weights, key)
        return Produced(
            gradients={**layout.joined(gradients), **shared_gradients},
            losses=losses,
            summaries=summaries,
            variables=layout.joined(after),
        )

    def stage_axes(self) -> tuple[str, ...]:
        """Returns the axis of its stages."""
        return (PIPELINE,)

    def run(self, work: Work, variables: Arrays) -> tuple[Arrays, Arrays, Any, Arrays]:
        """Returns one device's own and shared gradients, what was told, and variables."""
        raise NotImplementedError
