"""Runs the slots of one pipeline stage: a chunk forward or backward for one microbatch."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp

from dovetail.learner.pipeline.layout import StageLayout
from dovetail.learner.pipeline.stage import (
    PIPELINE,
    Stage,
    StageOutputs,
    all_reduce_outputs,
    reduce_slots,
)
from dovetail.learner.state import Arrays
from dovetail.parallel import PipelineSchedule


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Carry:
    """The state of a device from tick to tick.

    Attributes:
        x: the activation received from the previous stage.
        x_gradient: the activation gradient received from the next stage.
        variables: by path, [repeats, layers, ...].
        saved_inputs: the chunk inputs of the microbatches in flight.
        saved_variables: the variables that those forward passes read.
        stage_gradients: gradients of the stage's parameters so far.
        shared_gradients: gradients of the parameters that all stages share.
    """

    x: Any
    x_gradient: Any
    variables: Arrays
    saved_inputs: Any
    saved_variables: Arrays
    stage_gradients: Arrays
    shared_gradients: Arrays


@dataclass(frozen=True)
class StageRunner:
    """What a device needs to run its slots.

    Attributes:
        stage: the computation.
        layout: how the model is split.
        stage_index: the index of this device's stage.
        stacked_batch: all microbatches, along a leading axis.
        stage_params: the parameters of its chunks, [repeats, layers, ...].
        shared_params: the parameters that all stages share.
        trainable_paths: the paths of the trainable parameters.
    """

    stage: Stage
    layout: StageLayout
    stage_index: jax.Array
    stacked_batch: Any
    stage_params: Arrays
    shared_params: Arrays
    trainable_paths: Collection[str]

    @property
    def schedule(self) -> PipelineSchedule:
        """The schedule."""
        return self.layout.schedule

    def trainable(self, params: Arrays) -> Arrays:
        """Returns the trainable ones of these parameters."""
        return {path: value for path, value in params.items() if path in self.trainable_paths}

    def loss(
        self, stage: Arrays, shared: Arrays, variables: Arrays, x: Any, chunk: Any, index: Any
    ) -> Any:
        """Runs `Stage.loss` for a microbatch with these trainable parameters."""
        # A constraint on a parameter also constrains its gradient.
        stage, shared = self.layout.constrain(stage), self.layout.constrain(shared)
        params = {**_at(self.stage_params, chunk), **stage, **self.shared_params, **shared}
        number = self._chunk_number(chunk)
        return self.stage.loss(params, variables, x, self._micro(index), index, number)

    def forward(self, carry: Carry, tick: Any) -> tuple[Carry, None]:
        """Runs a chunk forward, and sends its output to the next stage."""
        chunk, index, is_active = self.schedule.forward(tick, self.stage_index)
        index = self._clip(index)
        buffer = (chunk, index % self.schedule.max_in_flight)
        variables = _at(carry.variables, chunk)
        params = {**_at(self.stage_params, chunk), **self.shared_params}
        number = self._chunk_number(chunk)
        y, after, _ = self.stage.forward(
            params, variables, carry.x, self._micro(index), index, number
        )
        return replace(
            carry,
            x=self.send(y, forward=True),
            variables=write(carry.variables, after, (chunk,), is_active),
            saved_inputs=jax.tree.map(
                lambda saved, x: _write(saved, x, buffer, is_active), carry.saved_inputs, carry.x
            ),
            saved_variables=write(carry.saved_variables, variables, buffer, is_active),
        ), None

    def backward(self, carry: Carry, tick: Any) -> tuple[Carry, StageOutputs]:
        """Runs a chunk backward, and sends the gradient of its input to the previous stage."""
        chunk, index, is_active = self.schedule.backward(tick, self.stage_index)
        index = self._clip(index)
        buffer = (chunk, index % self.schedule.max_in_flight)
        x = jax.tree.map(lambda saved: saved[buffer], carry.saved_inputs)
        variables = {path: v[buffer] for path, v in carry.saved_variables.items()}

        def run(stage: Arrays, shared: Arrays, x: Any) -> Any:
            return self.loss(stage, shared, variables, x, chunk, index)

        stage = self.trainable(_at(self.stage_params, chunk))
        shared = self.trainable(self.shared_params)
        (y, _), vjp, (outputs, _) = jax.vjp(run, stage, shared, x, has_aux=True)
        is_last = self._chunk_number(chunk) == self.stage.chunks - 1
        y_gradient = jax.tree.map(
            lambda y, dy: jnp.where(is_last, jnp.zeros_like(y), dy), y, carry.x_gradient
        )
        stage, shared, x_gradient = vjp((y_gradient, jnp.ones((), jnp.float32)))
        return replace(
            carry,
            x_gradient=self.send(x_gradient, forward=False),
            stage_gradients=_add(carry.stage_gradients, stage, (chunk,), is_active),
            shared_gradients=_add(carry.shared_gradients, shared, (), is_active),
        ), outputs

    def send(self, x: Any, *, forward: bool) -> Any:
        """Sends arrays to the next stage, or to the previous one, around the ring."""
        count = self.schedule.stages
        pairs = [(here, (here + (1 if forward else -1)) % count) for here in range(count)]
        return jax.lax.ppermute(x, PIPELINE, pairs)

    def zero_activation(self) -> Any:
        """Returns zeros in the shapes and dtypes of the activation between stages."""
        params = {**_at(self.stage_params, 0), **self.shared_params}
        shapes = jax.eval_shape(lambda: self.stage.embed(params, self._micro(0)))
        return jax.tree.map(lambda shape: jnp.zeros(shape.shape, shape.dtype), shapes)

    def merge_outputs(
        self, outputs: StageOutputs, start: Any, *, backward: bool
    ) -> tuple[Any, Any]:
        """Returns losses and summaries over all stages, given those of each tick.

        Args:
            outputs: stacked over ticks.
            start: the index of this stage's first active tick.
            backward: whether they come from backward slots, whose repeats are in reverse order.
        """
        schedule = self.schedule
        sizes = (-1, schedule.repeats, schedule.stages)

        def active(leaf: jax.Array) -> jax.Array:
            return jax.lax.dynamic_slice_in_dim(leaf, start, schedule.slots)

        def last_repeats(leaf: jax.Array) -> jax.Array:
            if schedule.repeats == 1:
                return leaf
            repeats = leaf.reshape(*sizes, *leaf.shape[1:])
            repeats = repeats[:, 0 if backward else -1]
            return repeats.reshape(-1, *leaf.shape[1:])

        reduced = reduce_slots(jax.tree.map(active, outputs), last_repeats)
        return all_reduce_outputs(reduced, self.stage_index == schedule.stages - 1)

    def _chunk_number(self, chunk: Any) -> Any:
        """Returns a chunk's number in the model, given its number on this stage."""
        return chunk * self.schedule.stages + self.stage_index

    def _micro(self, index: Any) -> Any:
        return jax.tree.map(lambda leaf: leaf[index], self.stacked_batch)

    def _clip(self, index: Any) -> Any:
        return jnp.clip(index, 0, self.schedule.microbatches - 1)


def write(arrays: Arrays, new: Arrays, index: tuple[Any, ...], is_active: Any) -> Arrays:
    """Writes values at an index of each array, if the slot is active."""
    return {path: _write(value, new[path], index, is_active) for path, value in arrays.items()}


def _at(arrays: Arrays, chunk: Any) -> Arrays:
    return {path: value[chunk] for path, value in arrays.items()}


def _write(array: jax.Array, value: jax.Array, index: tuple[Any, ...], is_active: Any) -> jax.Array:
    return array.at[index].set(jnp.where(is_active, value.astype(array.dtype), array[index]))


def _add(total: Arrays, more: Arrays, index: tuple[Any, ...], is_active: Any) -> Arrays:
    def add(path: str, old: jax.Array) -> jax.Array:
        new = jnp.where(is_active, more[path].astype(old.dtype), 0)
        return old.at[index].add(new) if index else old + new

    return {path: add(path, old) for path, old in total.items()}


def zeros(arrays: Arrays, lead: tuple[int, ...] = (), drop: int = 0, dtype: Any = None) -> Arrays:
    """Returns zeros in the shapes of arrays, with leading axes dropped and others added."""
    return {
        path: jnp.zeros((*lead, *value.shape[drop:]), dtype or value.dtype)
        for path, value in arrays.items()
    }
