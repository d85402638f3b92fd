"""The learner: from a loss to gradients to updated parameters, as one pure train step."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import optax

from dovetail.config import Component, ConfigError, ConfigOf, incidental
from dovetail.learner.ema import Ema
from dovetail.learner.freezing import TrainableParameters, select_trainable
from dovetail.learner.gradients import (
    Autodiff,
    GradientComputation,
    GradientResult,
    loss_weights,
    total_loss,
)
from dovetail.learner.groups import GroupMembers, ParameterGroup, find_members
from dovetail.learner.hyperparameters import Hyperparameters, scalar
from dovetail.learner.non_finite import FiniteCheck, apply_if_finite, check_finite
from dovetail.learner.optimizers.base import (
    Optimizer,
    OptimizerConfig,
    build_optimizer,
    required_extras,
)
from dovetail.learner.optimizers.library import AdamW
from dovetail.learner.optimizers.state_axes import LogicalAxes, optimizer_axes
from dovetail.learner.schedules import (
    CosineSchedule,
    Schedule,
    schedule_numbers,
    scheduled_rate,
)
from dovetail.learner.state import Arrays, StepReport, TrainState, main_loss
from dovetail.module import Module, parameter_specs, variable_specs
from dovetail.parallel import DeviceMemory, MemorySpace, Placement


class Learner(Component):
    """Initializes the training state, and computes one train step."""

    class Config(Component.Config["Learner"]):
        optimizer: OptimizerConfig = AdamW.Config()
        schedule: ConfigOf[Schedule] = CosineSchedule.Config()
        # A run may resume with another one that is declared to compute the same.
        gradients: ConfigOf[GradientComputation] = Autodiff.Config()
        # Where the optimizer state is between steps; it does not change the numbers.
        optimizer_memory: ConfigOf[MemorySpace] = incidental(DeviceMemory.Config())
        ema: ConfigOf[Ema] | None = None
        clip_norm: float | None = 1.0  # the largest global gradient norm
        weight_decay: float = 0.0  # decoupled, times the learning rate; where the spec decays
        # Patterns of paths, such as "decoder/stack/layer/0/*"; "!*/norm/*" unfreezes.
        frozen: tuple[str, ...] = ()
        # The first group whose pattern matches a parameter decides; the rest use the fields above.
        groups: tuple[ConfigOf[ParameterGroup], ...] = ()
        total_steps: int | None = None  # passed to a schedule that needs it and does not set it

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        _check(config)
        self.optimizer = build_optimizer(config.optimizer)
        self.schedule = _with_total_steps(config.schedule, config.total_steps).build()
        self.gradients = config.gradients.build()
        self.optimizer_memory = config.optimizer_memory.build()
        self.ema = config.ema.build() if config.ema is not None else None
        self.clip_norm, self.weight_decay = config.clip_norm, config.weight_decay
        self.frozen = config.frozen
        self.groups = tuple(group.build() for group in config.groups)

    def init(self, model: Module, params: Arrays, variables: Arrays) -> TrainState:
        """Returns the initial state. Pure: jit it, with shardings from `state_axes`."""
        trainable = self._trainable(model)
        optimizer = self._optimizer(model)
        training, _ = trainable.partition(params)
        return TrainState(
            step=jnp.zeros((), jnp.int32),
            params=params,
            variables=variables,
            optimizer=optimizer.transformation(trainable.specs).init(training),
            ema=self.ema.init(training) if self.ema is not None else {},
            halted_at=jnp.full((), -1, jnp.int32),
        )

    def hyperparameters(self) -> Hyperparameters:
        """Returns the numbers that a compiled step takes as an argument, as NumPy scalars."""
        return Hyperparameters(
            schedule=schedule_numbers(self.schedule),
            weight_decay=scalar(self.weight_decay),
            clip_norm=None if self.clip_norm is None else scalar(self.clip_norm),
            group_rates=tuple(scalar(group.rate) for group in self.groups),
            group_weight_decays=tuple(
                scalar(self.weight_decay if group.weight_decay is None else group.weight_decay)
                for group in self.groups
            ),
        )

    def step(
        self,
        model: Module,
        state: TrainState,
        batch: Any,
        key: jax.Array,
        hyperparameters: Hyperparameters | None = None,
    ) -> tuple[TrainState, StepReport]:
        """Computes one train step. Pure: jit it and donate the state.

        A step whose loss, gradients or extras are not finite is skipped: it sets `halted_at`, and
        no later step changes the state. So a loop that reads reports a few steps late still has
        the last good state.

        Args:
            model: the model; its parameters are in the state.
            state: from `init` or the previous step.
            batch: the model's inputs, as `functional` takes them.
            key: the run's key, the same for every step; the step number is folded in here.
            hyperparameters: of this learner, or of one that differs only in them, so that one
                program serves a sweep. None compiles this learner's own as constants.
        """
        numbers = self.hyperparameters() if hyperparameters is None else hyperparameters
        trainable = self._trainable(model)
        training, frozen = trainable.partition(state.params)
        step_key = jax.random.fold_in(key, state.step)
        inputs = (training, frozen, state.variables, batch, step_key, state.step)
        result = self.gradients(model, *inputs)
        gradients = trainable.mask_frozen(result.gradients)
        extras = self._extras(model, trainable, result)
        loss = total_loss(result.losses, loss_weights(result.losses))
        check = check_finite(loss, gradients, extras, sorted(state.params))
        # The schedule is evaluated on the devices, within the step.
        learning_rate = scheduled_rate(self.schedule, numbers.schedule, state.step)

        def update(old: TrainState) -> TrainState:
            clipped = _clip(gradients, check.gradient_norm, numbers.clip_norm)
            updated = self._update(model, old, trainable, clipped, extras, learning_rate, numbers)
            return replace(updated, variables=result.variables)

        # The step is skipped unless this step and all before it were finite.
        all_finite = check.finite & (state.halted_at < 0)
        optimizer = self.optimizer_memory.fetch(state.optimizer, after=check.gradient_norm)
        # Frozen parameters stay out of the `cond`, so that XLA does not copy them.
        old = replace(state, params=training, optimizer=optimizer)
        new = apply_if_finite(all_finite, update, old)
        halts_here = ~check.finite & (state.halted_at < 0)
        new = replace(
            new,
            params={**frozen, **new.params},
            halted_at=jnp.where(halts_here, state.step, state.halted_at),
        )
        return new, _report(loss, result, check, learning_rate)

    def check(self, placement: Placement) -> None:
        """Raises a ConfigError for a mesh whose stages the gradient computation does not use."""
        used = self.gradients.stage_axes()
        for axis in placement.rules.stage_axes(placement.mesh):
            if axis not in used:
                count = placement.mesh.shape[axis]
                raise ConfigError(
                    f"mesh.{axis}={count}: these devices hold different layers, but "
                    f"learner.gradients is {type(self.gradients).__name__}, which runs all layers "
                    f"on each of them: {count} times the work. Use a pipeline schedule (--with "
                    f"pipeline), or set mesh.{axis}=1."
                )

    def state_axes(self, model: Module) -> TrainState:
        """Returns a TrainState with the logical axes of each array (LogicalAxes)."""
        trainable = self._trainable(model).specs
        params = {path: LogicalAxes(spec.axes) for path, spec in parameter_specs(model).items()}
        scalar = LogicalAxes(())
        return TrainState(
            step=scalar,
            params=params,
            variables={p: LogicalAxes(spec.axes) for p, spec in variable_specs(model).items()},
            optimizer=jax.tree.map(
                lambda axes: axes.with_memory_kind(self.optimizer_memory.kind if axes else None),
                optimizer_axes(self._optimizer(model), trainable),
            ),
            ema={path: params[path] for path in trainable} if self.ema is not None else {},
            halted_at=scalar,
        )

    def trained_paths(self, model: Module) -> frozenset[str]:
        """Returns the paths of the parameters that are trained, if only in some layers."""
        return frozenset(self._trainable(model).specs)

    def _members(self, model: Module) -> GroupMembers:
        return find_members(parameter_specs(model), self.groups)

    def _trainable(self, model: Module) -> TrainableParameters:
        frozen_by_group = self._members(model).is_frozen if self.groups else None
        return select_trainable(parameter_specs(model), self.frozen, frozen_by_group)

    def _optimizer(self, model: Module) -> Optimizer:
        return self._members(model).optimizer(self.optimizer)

    def _extras(
        self, model: Module, trainable: TrainableParameters, result: GradientResult
    ) -> dict[str, Any]:
        """Returns the extras that the optimizer needs; XLA removes what computes others."""
        needed = required_extras(self._optimizer(model))
        optimizers = (self.optimizer, *(group.optimizer for group in self.groups))
        for name in needed:
            if name not in result.extras:
                owner = next(each for each in optimizers if name in required_extras(each))
                raise ConfigError(
                    f"learner.optimizer: {type(owner).__name__} needs the extra {name!r}, which "
                    f"learner.gradients, {type(self.gradients).__name__}, does not compute "
                    f"(it has: {', '.join(sorted(result.extras)) or 'none'}). Choose a gradient "
                    "computation that returns it in GradientResult.extras."
                )
        return {name: trainable.mask_extra(result.extras[name]) for name in needed}

    def _update(
        self,
        model: Module,
        state: TrainState,
        trainable: TrainableParameters,
        gradients: Arrays,
        extras: dict[str, Any],
        learning_rate: jax.Array,
        numbers: Hyperparameters,
    ) -> TrainState:
        """Returns the state after one optimizer update; its params are the trainable ones."""
        transformation = optax.with_extra_args_support(
            self._optimizer(model).transformation(trainable.specs)
        )
        directions, optimizer = transformation.update(
            gradients, state.optimizer, state.params, **extras
        )
        members = self._members(model)
        group_rates = [factor * learning_rate for factor in numbers.group_rates]
        params = {}
        for path, spec in trainable.specs.items():
            old, direction = state.params[path], directions[path]
            rate = members.number(path, learning_rate, group_rates)
            # Weight decay is applied here, decoupled from the optimizer.
            if spec.decays:
                decay = members.number(path, numbers.weight_decay, numbers.group_weight_decays)
                direction = direction + decay * old
            params[path] = (old - rate * direction).astype(old.dtype)
        params = trainable.mask_frozen(params, otherwise=state.params)
        return replace(
            state,
            step=state.step + 1,
            params=params,
            optimizer=jax.tree.map(lambda n, o: n.astype(o.dtype), optimizer, state.optimizer),
            ema=self.ema.update(state.ema, params, state.step) if self.ema is not None else {},
        )


def _clip(gradients: Arrays, norm: jax.Array, clip_norm: Any) -> Arrays:
    """Gradient clipping: gradients are clipped by their global norm, all parameters together."""
    if clip_norm is None:
        return gradients
    scale = clip_norm / jnp.maximum(norm, clip_norm)
    return {path: gradient * scale for path, gradient in gradients.items()}


def _report(
    loss: jax.Array, result: GradientResult, check: FiniteCheck, learning_rate: jax.Array
) -> StepReport:
    return StepReport(
        loss=loss,
        losses={path: each.value() for path, each in result.losses.items()},
        summaries=result.summaries,
        weight=result.losses[main_loss(list(result.losses))].weight,
        gradient_norm=check.gradient_norm,
        learning_rate=learning_rate,
        finite=check.finite,
        non_finite_parameter=check.non_finite_parameter,
        finite_extras=check.finite_extras,
    )


def _with_total_steps(schedule: ConfigOf[Schedule], total_steps: int | None) -> ConfigOf[Schedule]:
    """Sets a schedule's `total_steps` if it has that field and does not set it itself."""
    if total_steps is None or "total_steps" not in schedule.fields():
        return schedule
    return schedule if schedule.total_steps is not None else schedule.clone(total_steps=total_steps)


def _check(config: Learner.Config) -> None:
    if config.clip_norm is not None and not config.clip_norm > 0:
        raise ConfigError(
            f"learner.clip_norm must be above 0, got {config.clip_norm}; None disables clipping."
        )
    if config.weight_decay < 0:
        raise ConfigError(f"learner.weight_decay must be 0 or more, got {config.weight_decay}.")
