"""The program: first state and training step of an experiment, compiled with shardings.

It is made from specs alone. The trainer runs it, and a plan compiles the same one with no data and
no device.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import jax

from dovetail.kernels import references
from dovetail.learner import StepReport, TrainState
from dovetail.module import (
    Module,
    functional,
    initialize,
    initialize_variables,
    parameter_specs,
    variable_specs,
)
from dovetail.parallel import Activation, Placement, placed, watch_activations
from dovetail.runtime import matmul_flops_by_type

StepFunction = Callable[[TrainState, Any], tuple[TrainState, StepReport]]


class Program:
    """One experiment on one mesh."""

    def __init__(
        self,
        model: Module,
        learner: Any,
        batch_spec: Any,
        placement: Placement,
        make_key: Callable[[], jax.Array],
        kernels: Callable[[], AbstractContextManager[None]],
    ) -> None:
        """Takes the parts, and what puts the settings of kernels in force; computes nothing yet."""
        self.model, self.learner, self.placement = model, learner, placement
        self.kernels = kernels
        self.batch_spec, self.make_key = batch_spec, make_key

    @functools.cached_property
    def state_shapes(self) -> TrainState:
        """The state as shapes and types."""
        specs = (parameter_specs(self.model), variable_specs(self.model))
        structs = [{path: spec.struct() for path, spec in found.items()} for found in specs]
        state: TrainState = jax.eval_shape(
            functools.partial(self.learner.init, self.model), *structs
        )
        return state

    @functools.cached_property
    def state_axes(self) -> TrainState:
        """The logical axes of every array of the state."""
        axes: TrainState = self.learner.state_axes(self.model)
        return axes

    @functools.cached_property
    def state_shardings(self) -> TrainState:
        """The sharding of every array of the state, and the memory that it lies in."""

        def sharding(path: Any, names: Any, shape: Any) -> Any:
            # State is keyed by the path of its parameter, wherever the optimizer keeps it.
            keys = [str(entry.key) for entry in path if hasattr(entry, "key")]
            what = keys[-1] if keys else jax.tree_util.keystr(path)
            found = self.placement.sharding(names, shape.shape, what)
            return found if names.memory is None else found.with_memory_kind(names.memory)

        return jax.tree_util.tree_map_with_path(sharding, self.state_axes, self.state_shapes)

    @functools.cached_property
    def batch_shardings(self) -> Any:
        """The sharding of every array of a batch."""
        return jax.tree.map(
            lambda leaf: self.placement.sharding(leaf.axes, leaf.shape, "batch"), self.batch_spec
        )

    def check(self) -> None:
        """Raises a ConfigError for what does not divide or fit; nothing is compiled."""
        _ = self.lowered

    def initialize(self) -> TrainState:
        """Makes the first state, each array on its own shards."""
        key, shardings = jax.random.fold_in(self.make_key(), 0), self.state_shardings
        with placed(self.placement):
            params = initialize(self.model, key, shardings.params)
            variables = initialize_variables(self.model, key, shardings.variables)
            init = functools.partial(self.learner.init, self.model)
            start = jax.jit(init, donate_argnums=(0, 1), out_shardings=shardings)
            state: TrainState = start(params, variables)
        return state

    @functools.cached_property
    def traced(self) -> Any:
        """The step, traced: `.jaxpr` says what is computed, before any compiler looks at it."""
        shapes = jax.tree.map(
            lambda leaf, sharding: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding),
            (self.state_shapes, self._batch_shapes()),
            (self.state_shardings, self.batch_shardings),
        )
        step = jax.jit(self._step, donate_argnums=0, out_shardings=(self.state_shardings, None))
        with placed(self.placement), self.kernels():
            return step.trace(*shapes)

    @functools.cached_property
    def lowered(self) -> Any:
        """The step, lowered; `.compile()` gives the function that trains."""
        return self.traced.lower()

    def debug_step(self) -> StepFunction:
        """Returns a step that stops at the operation which makes the first NaN. It is slow."""
        step = jax.jit(self._step)  # nothing is donated: JAX runs the step again to find the place

        def run(state: TrainState, batch: Any) -> tuple[TrainState, StepReport]:
            with jax.debug_nans(True):
                return step(state, batch)

        return run

    def step_flops(self) -> int:
        """Returns the useful work of a step: three times the matrix products of a plain forward."""
        return 3 * sum(self._forward_flops.values())

    def precision(self) -> str:
        """Returns the type of number in which most of that work multiplies."""
        if not self._forward_flops:
            return self.model.compute_dtype or "float32"
        return max(self._forward_flops, key=self._forward_flops.__getitem__)

    @functools.cached_property
    def _forward_flops(self) -> dict[str, int]:
        """The work of a plain forward pass, by the type of number that is multiplied."""
        shapes = (self.state_shapes.params, self.state_shapes.variables, self._batch_shapes())

        def forward(params: Any, variables: Any, batch: Any) -> Any:
            key = self.make_key()
            return functional(
                self.model, params, batch, variables=variables, key=key, losses="return"
            )

        with references():
            return matmul_flops_by_type(forward, *shapes)

    def activations(self) -> list[Activation]:
        """Returns the arrays of a step that layers constrain or note, in order; none is made."""
        with placed(self.placement), self.kernels(), watch_activations() as found:
            jax.eval_shape(self._step, self.state_shapes, self._batch_shapes())
        return found

    def _batch_shapes(self) -> Any:
        return jax.tree.map(lambda leaf: leaf.struct(), self.batch_spec)

    def _step(self, state: TrainState, batch: Any) -> tuple[TrainState, StepReport]:
        key = jax.random.fold_in(self.make_key(), 1)
        result: tuple[TrainState, StepReport] = self.learner.step(self.model, state, batch, key)
        return result
