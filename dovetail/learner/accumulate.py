"""Gradient accumulation over microbatches, equal to one pass over the batch.

The loss of a step divides each total by its weight in the *whole* step, which is known only after
the last microbatch. So a first pass collects the weights. They depend on the batch alone (how many
tokens count), so XLA removes that pass's forward as dead code. A loss whose weight depends on
activations costs a second forward; its weight uses the variables from before the step.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from dovetail.config import REQUIRED, Component, ConfigError, interchangeable_with
from dovetail.learner.gradients import (
    Autodiff,
    ForwardOutputs,
    GradientResult,
    loss_weights,
    run_forward,
    total_loss,
)
from dovetail.learner.state import Arrays
from dovetail.module import Module


@interchangeable_with(Autodiff)
class Accumulate(Component):
    """Sums the gradients of microbatches in float32; activation memory is that of one."""

    class Config(Component.Config["Accumulate"]):
        microbatches: int = REQUIRED

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self.microbatches, self.key = config.microbatches, config.locate("microbatches")
        if config.microbatches < 1:
            raise ConfigError(f"{self.key}: expected 1 or more, got {config.microbatches}.")

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
        """Returns the gradients of the batch; variables carry over between microbatches."""
        items = (jnp.arange(self.microbatches), split_batch(batch, self.microbatches, self.key))

        def forward(trainable: Arrays, variables: Arrays, item: Any) -> ForwardOutputs:
            index, micro = item
            micro_key = jax.random.fold_in(key, index)
            return run_forward(model, {**frozen, **trainable}, variables, micro, micro_key)

        weights = step_loss_weights(model, {**frozen, **trainable}, variables, items[1], key)

        def accumulate(
            carry: tuple[Arrays, Arrays], item: Any
        ) -> tuple[tuple[Arrays, Arrays], Any]:
            gradients, variables = carry

            def loss_fn(trainable: Arrays) -> tuple[jax.Array, ForwardOutputs]:
                outputs = forward(trainable, variables, item)
                return total_loss(outputs.losses, weights), outputs

            more, outputs = jax.grad(loss_fn, has_aux=True)(trainable)
            summed = jax.tree.map(lambda old, new: old + new.astype(old.dtype), gradients, more)
            return (summed, outputs.variables), (outputs.losses, outputs.summaries)

        zeros = {path: jnp.zeros(value.shape, jnp.float32) for path, value in trainable.items()}
        carry, (losses_K, summaries_K) = jax.lax.scan(accumulate, (zeros, variables), items)
        return GradientResult(
            gradients=carry[0],
            losses={path: loss_K.reduce() for path, loss_K in losses_K.items()},
            summaries={path: summary_K.reduce() for path, summary_K in summaries_K.items()},
            variables=carry[1],
        )

    def stage_axes(self) -> tuple[str, ...]:
        """Returns none: every device runs all layers."""
        return ()


def step_loss_weights(
    model: Module, params: Arrays, variables: Arrays, stacked_batch: Any, key: jax.Array
) -> Arrays:
    """Returns the weight of each loss, summed over all microbatches of the step."""

    def weights_of(_: None, item: Any) -> tuple[None, Arrays]:
        index, micro = item
        outputs = run_forward(model, params, variables, micro, jax.random.fold_in(key, index))
        return None, loss_weights(outputs.losses)

    count = jax.tree.leaves(stacked_batch)[0].shape[0]
    _, weights_K = jax.lax.scan(weights_of, None, (jnp.arange(count), stacked_batch))
    return {path: weight_K.sum(0) for path, weight_K in weights_K.items()}


def split_batch(batch: Any, microbatches: int, key: str = "microbatches") -> Any:
    """Splits every array of a batch along its first axis: [B, ...] to [K, B/K, ...].

    Microbatch i takes rows i, i + K, i + 2K, ... Each device of a sharded batch has contiguous
    rows, so interleaving gives every microbatch rows from every device, without communication.
    Contiguous microbatches would be on a few devices each and need resharding. `key` names the
    number of microbatches in errors.
    """

    def split(path: Any, leaf: Any) -> jax.Array:
        rows = leaf.shape[0] if leaf.ndim else 0
        if rows == 0 or rows % microbatches:
            name = jax.tree_util.keystr(path, simple=True, separator="/")
            raise ConfigError(
                f"{key}={microbatches}: the batch has {rows} rows ({name or 'its only array'}), "
                f"which do not divide into {microbatches} microbatches. Choose a number of "
                "microbatches that divides them, or a batch size that is a multiple of it."
            )
        interleaved = leaf.reshape(rows // microbatches, microbatches, *leaf.shape[1:])
        return jnp.moveaxis(interleaved, 1, 0)

    return jax.tree_util.tree_map_with_path(split, batch)
