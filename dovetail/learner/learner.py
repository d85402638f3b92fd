"""The learner: from a loss to gradients to updated parameters, as one pure step."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp

from dovetail.config import ConfigError, ConfigOf, Part, incidental
from dovetail.learner.axes import LogicalAxes, optimizer_axes
from dovetail.learner.ema import Ema
from dovetail.learner.freezing import Trained, select_trained
from dovetail.learner.gradients import Autodiff, GradientProducer, Produced, total_loss, weights_of
from dovetail.learner.guard import Health, examine, update_if
from dovetail.learner.optimizer import Optimizer
from dovetail.learner.optimizers import AdamW
from dovetail.learner.schedules import Cosine, Schedule
from dovetail.learner.state import Arrays, StepReport, TrainState, main_loss
from dovetail.module import Module, parameter_specs, variable_specs
from dovetail.parallel import DeviceMemory, Memory, Placement


class Learner(Part):
    """Makes the first state of training, and takes one step from state to state."""

    class Config(Part.Config["Learner"]):
        """What the learner is put together from."""

        optimizer: ConfigOf[Optimizer] = AdamW.Config()
        schedule: ConfigOf[Schedule] = Cosine.Config()
        # All produce the gradients of the same loss, so a run may go on with another of them.
        gradients: ConfigOf[GradientProducer] = incidental(Autodiff.Config())
        # Where the optimizer's state lies between steps; the numbers are the same.
        optimizer_memory: ConfigOf[Memory] = incidental(DeviceMemory.Config())
        ema: ConfigOf[Ema] | None = None
        clip_norm: float | None = 1.0  # the largest global norm of a gradient
        weight_decay: float = 0.0  # decoupled, times the learning rate; only where the spec decays
        # Patterns of paths, such as "decoder/stack/layer/0/*"; "!*/norm/*" is trained all the same.
        frozen: tuple[str, ...] = ()
        total_steps: int | None = (
            None  # handed to a schedule that has an end and does not set it itself
        )

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        _check(config)
        self.optimizer = config.optimizer.build()
        self.schedule = _with_end(config.schedule, config.total_steps).build()
        self.gradients = config.gradients.build()
        self.optimizer_memory = config.optimizer_memory.build()
        self.ema = config.ema.build() if config.ema is not None else None
        self.clip_norm, self.weight_decay = config.clip_norm, config.weight_decay
        self.frozen = config.frozen

    def init(self, model: Module, params: Arrays, variables: Arrays) -> TrainState:
        """Returns the state before the first step. Pure: jit it, sharded as `state_axes` says."""
        trained = self._trained(model)
        training, _ = trained.split(params)
        return TrainState(
            step=jnp.zeros((), jnp.int32),
            params=params,
            variables=variables,
            optimizer=self.optimizer.transformation(trained.specs).init(training),
            ema=self.ema.init(training) if self.ema is not None else {},
            halted_at=jnp.full((), -1, jnp.int32),
        )

    def step(
        self, model: Module, state: TrainState, batch: Any, key: jax.Array
    ) -> tuple[TrainState, StepReport]:
        """Takes one step. Pure: jit it and donate the state.

        A step whose loss or gradient is not finite changes nothing but `halted_at`, and no later
        one changes anything. So whoever reads the reports some steps late still finds the last good
        state.

        Args:
            model: the model; its parameters are in the state.
            state: from `init` or the step before.
            batch: the model's inputs, as `functional` takes them.
            key: the run's key, the same for every step; the step's number is folded in here.
        """
        trained = self._trained(model)
        training, fixed = trained.split(state.params)
        step_key = jax.random.fold_in(key, state.step)
        produced = self.gradients(model, training, fixed, state.variables, batch, step_key)
        gradients = trained.only_trained(produced.gradients)
        loss = total_loss(produced.losses, weights_of(produced.losses))
        health = examine(loss, gradients, sorted(state.params))
        learning_rate = self.schedule(state.step)

        def update(old: TrainState) -> TrainState:
            clipped = self._clip(gradients, health.gradient_norm)
            return self._update(old, trained, clipped, learning_rate, produced.variables)

        accepted = health.finite & (state.halted_at < 0)
        optimizer = self.optimizer_memory.fetch(state.optimizer, after=health.gradient_norm)
        # What is wholly frozen stays out of it, so that it is not even passed through.
        new = update_if(accepted, update, replace(state, params=training, optimizer=optimizer))
        first_bad = ~health.finite & (state.halted_at < 0)
        new = replace(
            new,
            params={**fixed, **new.params},
            halted_at=jnp.where(first_bad, state.step, state.halted_at),
        )
        return new, _report(loss, produced, health, learning_rate)

    def check(self, placement: Placement) -> None:
        """Raises a ConfigError for a mesh on which devices would only repeat each other's work."""
        used = self.gradients.stage_axes()
        for axis in placement.rules.stage_axes(placement.mesh):
            if axis not in used:
                count = placement.mesh.shape[axis]
                raise ConfigError(
                    f"mesh.{axis}={count}: these devices hold different layers, but "
                    f"learner.gradients is {type(self.gradients).__name__}, which runs all layers "
                    f"on each of them: {count} times the work. Make gradients from stage to stage "
                    f"(--with pipeline), or set mesh.{axis}=1."
                )

    def state_axes(self, model: Module) -> TrainState:
        """Returns a TrainState whose leaves are the logical axes of the arrays (LogicalAxes)."""
        trained = self._trained(model).specs
        params = {path: LogicalAxes(spec.axes) for path, spec in parameter_specs(model).items()}
        scalar = LogicalAxes(())
        return TrainState(
            step=scalar,
            params=params,
            variables={p: LogicalAxes(spec.axes) for p, spec in variable_specs(model).items()},
            optimizer=jax.tree.map(
                lambda axes: axes.in_memory(self.optimizer_memory.kind if axes else None),
                optimizer_axes(self.optimizer, trained),
            ),
            ema={path: params[path] for path in trained} if self.ema is not None else {},
            halted_at=scalar,
        )

    def _trained(self, model: Module) -> Trained:
        return select_trained(parameter_specs(model), self.frozen)

    def _clip(self, gradients: Arrays, norm: jax.Array) -> Arrays:
        if self.clip_norm is None:
            return gradients
        scale = self.clip_norm / jnp.maximum(norm, self.clip_norm)
        return {path: (gradient * scale) for path, gradient in gradients.items()}

    def _update(
        self,
        state: TrainState,
        trained: Trained,
        gradients: Arrays,
        learning_rate: jax.Array,
        variables: Arrays,
    ) -> TrainState:
        """Returns the state after an update of its (trained) parameters."""
        transformation = self.optimizer.transformation(trained.specs)
        directions, optimizer = transformation.update(gradients, state.optimizer, state.params)
        params = {}
        for path, spec in trained.specs.items():
            old, direction = state.params[path], directions[path]
            if self.weight_decay and spec.decays:
                direction = direction + self.weight_decay * old
            params[path] = (old - learning_rate * direction).astype(old.dtype)
        params = trained.only_trained(params, otherwise=state.params)
        return replace(
            state,
            step=state.step + 1,
            params=params,
            variables=variables,
            optimizer=jax.tree.map(lambda n, o: n.astype(o.dtype), optimizer, state.optimizer),
            ema=self.ema.update(state.ema, params, state.step) if self.ema is not None else {},
        )


def _report(
    loss: jax.Array, produced: Produced, health: Health, learning_rate: jax.Array
) -> StepReport:
    return StepReport(
        loss=loss,
        losses={path: each.value() for path, each in produced.losses.items()},
        summaries=produced.summaries,
        weight=produced.losses[main_loss(list(produced.losses))].weight,
        gradient_norm=health.gradient_norm,
        learning_rate=learning_rate,
        finite=health.finite,
        bad_parameter=health.bad_parameter,
    )


def _with_end(schedule: ConfigOf[Schedule], total_steps: int | None) -> ConfigOf[Schedule]:
    """Tells a schedule how long the run is, if it wants to know and does not yet."""
    if total_steps is None or "total_steps" not in schedule.fields():
        return schedule
    return schedule if schedule.total_steps is not None else schedule.clone(total_steps=total_steps)


def _check(config: Learner.Config) -> None:
    if config.clip_norm is not None and not config.clip_norm > 0:
        raise ConfigError(
            f"learner.clip_norm must be above 0, got {config.clip_norm}; None clips nothing."
        )
    if config.weight_decay < 0:
        raise ConfigError(f"learner.weight_decay must be 0 or more, got {config.weight_decay}.")
