"""The computation of a pipeline stage: its chunks of layers, with embedding and head.

Every device runs the same program. Embedding and head run on all stages, since all devices tick
together and would only wait otherwise; their results are masked where they do not belong.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import jax
import jax.numpy as jnp

from dovetail.learner.gradients import float32_losses, total_loss
from dovetail.learner.state import Arrays
from dovetail.module import Module, functional

PIPELINE = "pipeline"


@runtime_checkable
class PipelineModel(Protocol):
    """A model that can be split: `__call__` is embed, then all chunks of layers, then head_loss."""

    def embed(self, batch: Any, /) -> Any:
        """Returns the input of the first chunk: an array, or a pytree of arrays."""
        ...

    def run_layers(self, x: Any, batch: Any, first: Any, /) -> Any:
        """Runs the chunk that begins with layer `first`."""
        ...

    def head_loss(self, x: Any, batch: Any, /) -> None:
        """Adds the losses, given the output of the last chunk."""
        ...

    def stage_model(self, num_chunks: int, /) -> Module:
        """Returns the same model with one of `num_chunks` chunks of its layers."""
        ...


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class StageOutputs:
    """Losses and summaries, those of the layers and those of the head."""

    layers: Any
    head: Any


@dataclass(frozen=True)
class Stage:
    """The computation of one chunk for one microbatch.

    Attributes:
        model: the model with one chunk of its layers.
        layers: the number of layers in a chunk.
        chunks: the number of chunks in all.
        key: the step's random key.
        weights: the weight of each loss in the step.
    """

    model: Module
    layers: int
    chunks: int
    key: jax.Array
    weights: Arrays

    def forward(
        self, params: Arrays, variables: Arrays, x: Any, micro: Any, index: Any, chunk: Any
    ) -> tuple[Any, Arrays, Any]:
        """Returns the chunk's output, its variables afterwards, and its side outputs."""
        run = self._runner(params, variables, index)
        first, _ = run("embed", micro)
        x = jax.tree.map(lambda a, b: jnp.where(chunk == 0, a.astype(b.dtype), b), first, x)
        y, outputs = run("run_layers", (x, micro, chunk * self.layers))
        variables = {path: outputs.variables[path] for path in variables}
        return jax.tree.map(lambda a, b: a.astype(b.dtype), y, x), variables, outputs

    def embed(self, params: Arrays, micro: Any) -> Any:
        """Returns the input of the first chunk."""
        return self._runner(params, {}, 0)("embed", micro)[0]

    def loss(
        self, params: Arrays, variables: Arrays, x: Any, micro: Any, index: Any, chunk: Any
    ) -> tuple[tuple[Any, jax.Array], tuple[StageOutputs, Arrays]]:
        """Returns the chunk's output and loss; and, without gradient, its outputs and variables."""
        y, after, layers = self.forward(params, variables, x, micro, index, chunk)
        _, head = self._runner(params, variables, index)("head_loss", (y, micro))
        layer_losses, head_losses = float32_losses(layers), float32_losses(head)
        is_last = chunk == self.chunks - 1
        loss = jnp.where(is_last, total_loss(head_losses, self.weights), 0.0)
        if layer_losses:
            loss = loss + total_loss(layer_losses, self.weights)
        outputs = StageOutputs((layer_losses, layers.summaries), (head_losses, head.summaries))
        return (y, loss), jax.tree.map(jax.lax.stop_gradient, (outputs, after))

    def _runner(self, params: Arrays, variables: Arrays, index: Any) -> Callable[..., Any]:
        key = jax.random.fold_in(self.key, index)

        def run(method: str, inputs: Any) -> Any:
            return functional(
                self.model,
                params,
                inputs,
                variables=variables,
                key=key,
                training=True,
                losses="return",
                method=method,
            )

        return run


def all_reduce_outputs(outputs: StageOutputs, is_last: jax.Array) -> tuple[Any, Any]:
    """Returns losses and summaries over all stages: the layers' merged, the last stage's head."""
    layers = jax.tree.map(
        lambda each: each.all_reduce((PIPELINE,)), outputs.layers, is_leaf=_merges
    )
    head = jax.tree.map(
        lambda leaf: jax.lax.psum(jnp.where(is_last, leaf, jnp.zeros_like(leaf)), PIPELINE),
        outputs.head,
    )
    return {**layers[0], **head[0]}, {**layers[1], **head[1]}


def reduce_slots(outputs: StageOutputs, last_repeats: Callable[[Any], Any]) -> StageOutputs:
    """Merges outputs stacked over slots; the head counts only in a microbatch's last repeat."""
    layers = jax.tree.map(lambda each: each.reduce(), outputs.layers, is_leaf=_merges)
    head = jax.tree.map(last_repeats, outputs.head)
    return StageOutputs(layers, jax.tree.map(lambda each: each.reduce(), head, is_leaf=_merges))


def _merges(value: Any) -> bool:
    return hasattr(value, "merge") and hasattr(value, "reduce")
