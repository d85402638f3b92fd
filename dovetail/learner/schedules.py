"""Learning-rate schedules: the learning rate as a function of the number of completed updates.

All have linear warmup, and no update has learning rate zero: with `warmup_steps` w, the first
update has peak / (w + 1), and update w (from 0) is the first at the peak. A decay reaches its end
at `total_steps`, one past the last update.

The numbers of a `BaseSchedule` are arguments of the compiled step: another peak or another number
of steps does not compile it again. A schedule need not be one: any component that is called with
the step works, and its numbers are constants of the program.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, Generic, Protocol, runtime_checkable

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from dovetail.config import Component, ConfigError, ConfigOf, T_co, did_you_mean
from dovetail.learner.hyperparameters import bind, numbers_of
from dovetail.utils import plural


@runtime_checkable
class Schedule(Protocol):
    """Returns the learning rate of each step; it is traced into the train step."""

    def __call__(self, step: jax.Array) -> jax.Array:
        """Returns the learning rate after `step` completed updates."""
        ...


class BaseSchedule(Component):
    """A schedule whose numbers (its int and float attributes) are traced in the train step.

    `__call__` reads them as usual, as `self.peak`. It must not branch on them in Python; use
    `jnp.where`, or derive another attribute in `__init__`.
    """

    class Config(Component.Config[T_co], Generic[T_co]):
        """No fields."""

    def __call__(self, step: jax.Array) -> jax.Array:
        """Returns the learning rate after `step` completed updates."""
        raise NotImplementedError(f"{type(self).__name__} must implement __call__.")


class WarmupSchedule(BaseSchedule):
    """Linear warmup to the peak; subclasses define what follows."""

    class Config(BaseSchedule.Config[T_co], Generic[T_co]):
        peak: float = 3e-4
        warmup_steps: int = 0

    def __init__(self, config: Config[Any]) -> None:
        super().__init__(config)
        self.peak, self.warmup_steps = config.peak, config.warmup_steps
        if not 0.0 <= self.peak < math.inf:
            raise self._error(
                "peak",
                f"expected 0 or more, and finite: the highest learning rate. Got {self.peak}.",
            )
        if self.warmup_steps < 0:
            raise self._error("warmup_steps", f"expected 0 or more, got {self.warmup_steps}.")

    def __call__(self, step: jax.Array) -> jax.Array:
        """Returns the learning rate after `step` completed updates."""
        step = jnp.asarray(step, jnp.float32)
        warmup = jnp.minimum(1.0, (step + 1) / (self.warmup_steps + 1))
        return self.peak * warmup * self.after_warmup(step)

    def after_warmup(self, step: jax.Array) -> jax.Array:
        """Returns the learning rate as a fraction of the peak; 1 during warmup."""
        raise NotImplementedError(f"{type(self).__name__} must implement after_warmup.")

    def _error(self, field: str, message: str) -> ConfigError:
        return ConfigError(f"{self.config.locate(field)}: {message}")


class ConstantSchedule(WarmupSchedule):
    """Constant at the peak, after warmup."""

    def after_warmup(self, step: jax.Array) -> jax.Array:
        """Returns 1."""
        return jnp.ones_like(step)


class InverseSquareRootSchedule(WarmupSchedule):
    """Decays with the inverse square root of the step; it needs no `total_steps`.

    The length of the warmup is its time scale: without warmup it decays from the first update.
    """

    def after_warmup(self, step: jax.Array) -> jax.Array:
        """Returns sqrt(warmup / step)."""
        start = self.warmup_steps + 1
        return jnp.sqrt(start / jnp.maximum(step + 1, start))


class DecaySchedule(WarmupSchedule):
    """A schedule that decays until `total_steps`."""

    class Config(WarmupSchedule.Config[T_co], Generic[T_co]):
        """When the decay ends, and at which fraction of the peak.

        The warmup can be a fraction of all steps instead of a number.
        """

        # None: the learner sets its own `total_steps`, which the trainer sets.
        total_steps: int | None = None
        end_fraction: float = 0.0
        warmup_fraction: float = 0.0

    def __init__(self, config: Config[Any]) -> None:
        super().__init__(config)
        self.end_fraction = config.end_fraction
        if config.total_steps is None:
            raise self._error(
                "total_steps",
                f"not set, so the decay of {type(self).__name__} has no end. Set it here, or as "
                "the learner's total_steps; a trainer sets it to its own number of steps.",
            )
        self.total_steps: int = config.total_steps
        if config.warmup_fraction:
            self._set_warmup(config.warmup_fraction)
        if self.warmup_steps >= self.total_steps:
            raise self._error(
                "warmup_fraction" if config.warmup_fraction else "warmup_steps",
                f"a warmup of {plural(self.warmup_steps, 'step')} is not shorter than "
                f"total_steps={self.total_steps}. Shorten the warmup or train longer.",
            )

    def _set_warmup(self, fraction: float) -> None:
        if not 0.0 < fraction < 1.0:
            raise self._error("warmup_fraction", f"expected 0 to less than 1, got {fraction}.")
        if self.warmup_steps:
            raise self._error(
                "warmup_steps",
                f"got {self.warmup_steps}, but warmup_fraction={fraction} sets the warmup. "
                "Set one of the two to 0.",
            )
        self.warmup_steps = int(fraction * self.total_steps)

    def progress(self, step: jax.Array, start: ArrayLike) -> jax.Array:
        """Returns the progress of a step from `start` to `total_steps`, from 0 to 1."""
        return jnp.clip((step - start) / jnp.maximum(self.total_steps - start, 1e-6), 0.0, 1.0)

    def interpolate(self, remaining: jax.Array) -> jax.Array:
        """Interpolates from `end_fraction` (0 remaining) to the peak (1 remaining)."""
        return self.end_fraction + (1.0 - self.end_fraction) * remaining


class CosineSchedule(DecaySchedule):
    """Cosine decay from the end of the warmup to `total_steps`."""

    class Config(DecaySchedule.Config["CosineSchedule"]):
        """Ends at a tenth of the peak by default."""

        end_fraction: float = 0.1

    def after_warmup(self, step: jax.Array) -> jax.Array:
        """Returns the cosine decay."""
        done = self.progress(step, self.warmup_steps)
        return self.interpolate(0.5 * (1.0 + jnp.cos(jnp.pi * done)))


class WarmupStableDecaySchedule(DecaySchedule):
    """Warmup, a constant peak, then linear decay over the last steps (WSD, arXiv 2405.18392).

    Any checkpoint of the stable phase can be decayed to a finished model, or trained further.
    """

    class Config(DecaySchedule.Config["WarmupStableDecaySchedule"]):
        """The fraction of all steps that decay."""

        decay_fraction: float = 0.2

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        if not 0.0 <= config.decay_fraction <= 1.0:
            raise self._error("decay_fraction", f"expected 0 to 1, got {config.decay_fraction}.")
        start = (1.0 - config.decay_fraction) * self.total_steps
        self.decay_start = max(start, float(self.warmup_steps))

    def after_warmup(self, step: jax.Array) -> jax.Array:
        """Returns 1, then the linear decay."""
        return self.interpolate(1.0 - self.progress(step, self.decay_start))


def schedule_numbers(schedule: Schedule) -> dict[str, Any]:
    """Returns the numbers of a schedule that are arguments of the step."""
    return dict(numbers_of(schedule)) if isinstance(schedule, BaseSchedule) else {}


def scheduled_rate(schedule: Schedule, numbers: Mapping[str, Any], step: jax.Array) -> jax.Array:
    """Returns the learning rate of a schedule with other numbers (see `schedule_numbers`)."""
    try:
        return bind(schedule, numbers)(step)
    except jax.errors.ConcretizationTypeError as error:
        name = type(schedule).__name__
        raise ConfigError(
            f"learner.schedule: {name} uses one of its numbers ({', '.join(numbers)}) where Python "
            "needs a constant, such as `if` or `max`. They are traced in the train step, so that "
            "another value does not compile it again. Use jnp.where or jnp.maximum; or make it a "
            "Component instead of a BaseSchedule, with constants."
        ) from error


SCHEDULES: Mapping[str, Callable[[], Any]] = {
    "constant": ConstantSchedule.Config,
    "cosine": CosineSchedule.Config,
    "inverse-square-root": InverseSquareRootSchedule.Config,
    "linear": lambda: WarmupStableDecaySchedule.Config(decay_fraction=1.0),
    "warmup-stable-decay": WarmupStableDecaySchedule.Config,
}


def named_schedule(name: str) -> ConfigOf[Schedule]:
    """Returns the config of a schedule; "linear" decays from the end of the warmup to zero."""
    if name not in SCHEDULES:
        known = ", ".join(SCHEDULES)
        advice = did_you_mean(name, SCHEDULES)
        raise ConfigError(f"There is no schedule {name!r}. {advice} Known: {known}.")
    return SCHEDULES[name]()
