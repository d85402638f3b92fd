"""The program: initial state and train step of an experiment, with shardings.

It is built from specs alone. The trainer runs it; a plan compiles the same one without data or
devices.
"""

from __future__ import annotations

import functools
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any

import jax

from dovetail.kernels import reference_only
from dovetail.learner import StepReport, TrainState
from dovetail.module import (
    Module,
    functional,
    initialize,
    initialize_variables,
    parameter_specs,
    variable_specs,
)
from dovetail.parallel import Activation, Placement, capture_activations, use_placement
from dovetail.runtime import count_cache_hits, matmul_flops_by_dtype
from dovetail.utils import format_duration

# Most steps that are in the compilation cache are loaded sooner than this.
_NOTICE_SECONDS = 0.8

StepFunction = Callable[[TrainState, Any, Any], tuple[TrainState, StepReport]]
"""Takes the state, a batch and `Program.hyperparameters`."""


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
        """Takes the components, and a context for the kernel settings; computes nothing yet."""
        self.model, self.learner, self.placement = model, learner, placement
        self.kernels = kernels
        self.batch_spec, self.make_key = batch_spec, make_key

    @functools.cached_property
    def state_shapes(self) -> TrainState:
        """The state as shapes and dtypes."""
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
        """The sharding of every array of the state, with its memory kind."""

        def sharding(path: Any, names: Any, shape: Any) -> Any:
            keys = [str(entry.key) for entry in path if hasattr(entry, "key")]
            name = keys[-1] if keys else jax.tree_util.keystr(path)
            found = self.placement.sharding(self.rule_axes(keys, names), shape.shape, name)
            return found if names.memory_kind is None else found.with_memory_kind(names.memory_kind)

        return jax.tree_util.tree_map_with_path(sharding, self.state_axes, self.state_shapes)

    def rule_axes(self, keys: Sequence[str], axes: Any) -> Any:
        """Returns the logical axes of an array of the state, with the rule that names its path.

        Optimizer state is keyed by the path of its parameter, at any depth.
        """
        owner = next((key for key in keys if key in self._parameter_axes), None)
        if owner is None:
            return axes
        return self.placement.rules.for_parameter(owner, self._parameter_axes[owner], axes)

    @functools.cached_property
    def _parameter_axes(self) -> dict[str, Any]:
        return {path: spec.axes for path, spec in parameter_specs(self.model).items()}

    @functools.cached_property
    def batch_shardings(self) -> Any:
        """The sharding of every array of a batch."""
        return jax.tree.map(
            lambda leaf: self.placement.sharding(leaf.axes, leaf.shape, "batch"), self.batch_spec
        )

    @functools.cached_property
    def hyperparameters(self) -> Any:
        """The learner's numbers on the devices, replicated: the last argument of the step."""

        def replicate(value: Any) -> jax.Array:
            return jax.make_array_from_callback(value.shape, self._replicated, lambda _: value)

        return jax.tree.map(replicate, self.learner.hyperparameters())

    def check(self) -> None:
        """Raises a ConfigError for what does not divide; nothing is compiled."""
        _ = self.lowered

    def initialize(self) -> TrainState:
        """Initializes the state, each array directly on its shards."""
        key, shardings = jax.random.fold_in(self.make_key(), 0), self.state_shardings
        with use_placement(self.placement):
            params = initialize(self.model, key, shardings.params)
            variables = initialize_variables(self.model, key, shardings.variables)
            init = functools.partial(self.learner.init, self.model)
            start = jax.jit(init, donate_argnums=(0, 1), out_shardings=shardings)
            state: TrainState = start(params, variables)
        return state

    @functools.cached_property
    def traced(self) -> Any:
        """The traced step; `.jaxpr` is what is computed, before compilation."""
        hyperparameters = self._hyperparameter_shapes()
        replicated = jax.tree.map(lambda _: self._replicated, hyperparameters)
        shapes = jax.tree.map(
            lambda leaf, sharding: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding),
            (self.state_shapes, self._batch_shapes(), hyperparameters),
            (self.state_shardings, self.batch_shardings, replicated),
        )
        # The new state stays sharded, so XLA sums gradients by a reduce-scatter (FSDP).
        step = jax.jit(self._step, donate_argnums=0, out_shardings=(self.state_shardings, None))
        with use_placement(self.placement), self.kernels():
            return step.trace(*shapes)

    @functools.cached_property
    def lowered(self) -> Any:
        """The lowered step; `.compile()` returns the train step."""
        return self.traced.lower()

    def debug_step(self) -> StepFunction:
        """Returns a slow step that raises at the operation that produces the first NaN."""
        step = jax.jit(self._step)  # no donation: JAX runs the step again to find the operation

        def run(
            state: TrainState, batch: Any, hyperparameters: Any
        ) -> tuple[TrainState, StepReport]:
            with jax.debug_nans(True):
                return step(state, batch, hyperparameters)

        return run

    def step_flops(self) -> int:
        """Returns the model FLOPs of a step: three times the matmuls of a plain forward pass."""
        return 3 * sum(self._forward_flops.values())

    def precision(self) -> str:
        """Returns the dtype of most of those matmuls."""
        if not self._forward_flops:
            return self.model.compute_dtype or "float32"
        return max(self._forward_flops, key=self._forward_flops.__getitem__)

    @functools.cached_property
    def _forward_flops(self) -> dict[str, int]:
        """The matmul FLOPs of a plain forward pass, by dtype."""
        shapes = (self.state_shapes.params, self.state_shapes.variables, self._batch_shapes())

        def forward(params: Any, variables: Any, batch: Any) -> Any:
            key = self.make_key()
            return functional(
                self.model, params, batch, variables=variables, key=key, losses="return"
            )

        with reference_only():
            return matmul_flops_by_dtype(forward, *shapes)

    def activations(self) -> list[Activation]:
        """Returns the activations that layers constrain or record, by abstract evaluation."""
        with use_placement(self.placement), self.kernels(), capture_activations() as found:
            shapes = (self.state_shapes, self._batch_shapes(), self._hyperparameter_shapes())
            jax.eval_shape(self._step, *shapes)
        return found

    def _batch_shapes(self) -> Any:
        return jax.tree.map(lambda leaf: leaf.struct(), self.batch_spec)

    def _hyperparameter_shapes(self) -> Any:
        return jax.tree.map(
            lambda value: jax.ShapeDtypeStruct(value.shape, value.dtype),
            self.learner.hyperparameters(),
        )

    @property
    def _replicated(self) -> jax.sharding.NamedSharding:
        return self.placement.sharding(())

    def _step(
        self, state: TrainState, batch: Any, hyperparameters: Any
    ) -> tuple[TrainState, StepReport]:
        key = jax.random.fold_in(self.make_key(), 1)
        result: tuple[TrainState, StepReport] = self.learner.step(
            self.model, state, batch, key, hyperparameters
        )
        return result


def compile_step(lowered: Any, log: Callable[[str], None]) -> Any:
    """Compiles a lowered step, or loads it from the compilation cache, and logs which.

    JAX does not say which before it is done, so a notice in between names both.
    """
    started = time.monotonic()
    notice = threading.Timer(_NOTICE_SECONDS, log, ["loading or compiling the step"])
    notice.daemon = True
    notice.start()
    try:
        with count_cache_hits() as hits:
            compiled = lowered.compile()
    finally:
        notice.cancel()
    done = "loaded the step from the cache" if hits() else "compiled the step"
    log(f"{done} in {format_duration(time.monotonic() - started)}")
    return compiled
