"""Gradient accumulation: a batch in micro-batches, one after the other, equal to the whole at once.

The loss of a step divides each total by its weight in the *whole* step, and only the last
micro-batch would know that weight. So a first pass collects the weights alone. They come from the
batch (how many tokens count), so nothing of the model's forward is needed for them, and the
compiler drops it as dead code. A loss whose weight does depend on activations costs a second
forward; and it is weighed with the variables as they were before the step.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from dovetail.config import REQUIRED, ConfigError, Part
from dovetail.learner.gradients import Forward, Produced, run, total_loss, weights_of
from dovetail.learner.state import Arrays
from dovetail.module import Module


class Accumulate(Part):
    """Adds up the gradients of micro-batches in float32; memory for activations is that of one."""

    class Config(Part.Config["Accumulate"]):
        """Into how many micro-batches a batch is split."""

        microbatches: int = REQUIRED

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self.microbatches, self.key = config.microbatches, config.locate("microbatches")
        if config.microbatches < 1:
            raise ConfigError(f"{self.key}: expected 1 or more, got {config.microbatches}.")

    def __call__(
        self,
        model: Module,
        trained: Arrays,
        fixed: Arrays,
        variables: Arrays,
        batch: Any,
        key: jax.Array,
    ) -> Produced:
        """Returns the gradients of the whole batch; variables pass on between micro-batches."""
        items = (jnp.arange(self.microbatches), split_batch(batch, self.microbatches, self.key))

        def forward(trained: Arrays, variables: Arrays, item: Any) -> Forward:
            index, micro = item
            micro_key = jax.random.fold_in(key, index)
            return run(model, {**fixed, **trained}, variables, micro, micro_key)

        weights = weights_of_step(model, {**fixed, **trained}, variables, items[1], key)

        def add(carry: tuple[Arrays, Arrays], item: Any) -> tuple[tuple[Arrays, Arrays], Any]:
            gradients, variables = carry

            def objective(trained: Arrays) -> tuple[jax.Array, Forward]:
                part = forward(trained, variables, item)
                return total_loss(part.losses, weights), part

            more, part = jax.grad(objective, has_aux=True)(trained)
            summed = jax.tree.map(lambda old, new: old + new.astype(old.dtype), gradients, more)
            return (summed, part.variables), (part.losses, part.summaries)

        zeros = {path: jnp.zeros(value.shape, jnp.float32) for path, value in trained.items()}
        carry, (losses_K, summaries_K) = jax.lax.scan(add, (zeros, variables), items)
        return Produced(
            gradients=carry[0],
            losses={path: loss_K.reduce() for path, loss_K in losses_K.items()},
            summaries={path: summary_K.reduce() for path, summary_K in summaries_K.items()},
            variables=carry[1],
        )

    def stage_axes(self) -> tuple[str, ...]:
        """Returns none: every device runs all layers."""
        return ()


def weights_of_step(
    model: Module, params: Arrays, variables: Arrays, micro_K: Any, key: jax.Array
) -> Arrays:
    """Returns the weight of each loss in all micro-batches together."""

    def weigh(_: None, item: Any) -> tuple[None, Arrays]:
        index, micro = item
        forward = run(model, params, variables, micro, jax.random.fold_in(key, index))
        return None, weights_of(forward.losses)

    count = jax.tree.leaves(micro_K)[0].shape[0]
    _, weights_K = jax.lax.scan(weigh, None, (jnp.arange(count), micro_K))
    return {path: weight_K.sum(0) for path, weight_K in weights_K.items()}


def split_batch(batch: Any, microbatches: int, key: str = "microbatches") -> Any:
    """Splits every array of a batch along its first axis: [B, ...] to [K, B/K, ...].

    Micro-batch i takes rows i, i + K, i + 2K, ... A batch that is sharded over devices has
    contiguous rows on each; taken in this interleaved way, each device's rows fall evenly on all
    micro-batches and stay where they are. Contiguous micro-batches would lie on a few devices each,
    and every one would have to be spread anew. `key` is what an error calls their number.
    """

    def split(path: Any, leaf: Any) -> jax.Array:
        rows = leaf.shape[0] if leaf.ndim else 0
        if rows == 0 or rows % microbatches:
            name = jax.tree_util.keystr(path, simple=True, separator="/")
            raise ConfigError(
                f"{key}={microbatches}: the batch has {rows} rows ({name or 'its only array'}), "
                f"which do not divide into {microbatches} micro-batches. Choose a number of "
                "micro-batches that divides them, or a batch size that is a multiple of it."
            )
        interleaved = leaf.reshape(rows // microbatches, microbatches, *leaf.shape[1:])
        return jnp.moveaxis(interleaved, 1, 0)

    return jax.tree_util.tree_map_with_path(split, batch)
