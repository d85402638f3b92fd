"""Learning-rate schedules: from the number of completed updates to the rate of the next one.

All of them warm up linearly, and no update has the rate zero: with `warmup_steps` w the first
update has peak / (w + 1), and update w (counted from 0) is the first at the peak. What decays would
reach its end at `total_steps`, the first update that is not made.
"""

from __future__ import annotations

from typing import Any, Generic, Protocol, runtime_checkable

import jax
import jax.numpy as jnp

from dovetail.config import ConfigError, Part, T_co


@runtime_checkable
class Schedule(Protocol):
    """Gives the learning rate of each step; runs inside jit."""

    def __call__(self, step: jax.Array) -> jax.Array:
        """Returns the learning rate after `step` completed updates."""
        ...


class WarmedUp(Part):
    """A schedule that climbs linearly to its peak, and then does what its subclass says."""

    class Config(Part.Config[T_co], Generic[T_co]):
        """The highest rate, and the number of updates below it at the start."""

        peak: float = 3e-4
        warmup_steps: int = 0

    def __init__(self, config: Config[Any]) -> None:
        super().__init__(config)
        self.peak, self.warmup_steps = config.peak, config.warmup_steps
        if self.warmup_steps < 0:
            raise self._error(f"warmup_steps must be 0 or more, got {self.warmup_steps}.")

    def __call__(self, step: jax.Array) -> jax.Array:
        """Returns the learning rate after `step` completed updates."""
        step = jnp.asarray(step, jnp.float32)
        warmth = jnp.minimum(1.0, (step + 1) / (self.warmup_steps + 1))
        return self.peak * warmth * self.after_warmup(step)

    def after_warmup(self, step: jax.Array) -> jax.Array:
        """Returns the fraction of the peak; 1 during warm-up."""
        raise NotImplementedError(
            f"{type(self).__name__} must say how it goes on after its warm-up."
        )

    def _error(self, message: str) -> ConfigError:
        return ConfigError(f"{type(self).__name__}: {message}")


class Constant(WarmedUp):
    """Stays at the peak."""

    class Config(WarmedUp.Config["Constant"]):
        """Nothing beyond the peak and the warm-up."""

    def after_warmup(self, step: jax.Array) -> jax.Array:
        """Returns 1."""
        return jnp.ones_like(step)


class InverseSquareRoot(WarmedUp):
    """Decays with the square root of the step; it needs no end, so a run may always go on.

    Without warm-up it decays from the first update.
    """

    class Config(WarmedUp.Config["InverseSquareRoot"]):
        """Nothing beyond the peak and the warm-up, whose length sets the pace of the decay."""

    def after_warmup(self, step: jax.Array) -> jax.Array:
        """Returns sqrt(warm-up / step)."""
        start = float(self.warmup_steps + 1)
        return jnp.sqrt(start / jnp.maximum(step + 1, start))


class Decaying(WarmedUp):
    """A schedule with an end."""

    class Config(WarmedUp.Config[T_co], Generic[T_co]):
        """Where the decay ends, and at which fraction of the peak.

        The warm-up can be a fraction of all steps instead of a number, so that it fits any length.
        """

        # None: the learner fills in its own number of steps, which it has from the trainer.
        total_steps: int | None = None
        end_fraction: float = 0.0
        warmup_fraction: float = 0.0

    def __init__(self, config: Config[Any]) -> None:
        super().__init__(config)
        self.end_fraction = config.end_fraction
        if config.total_steps is None:
            raise self._error(
                "total_steps is not set, so the decay has no end. Set it here, or as the learner's "
                "total_steps; a trainer sets it to its own number of steps."
            )
        self.total_steps: int = config.total_steps
        if config.warmup_fraction:
            self._warm_up_for(config.warmup_fraction)
        if self.warmup_steps >= self.total_steps:
            raise self._error(
                f"a warm-up of {self.warmup_steps} steps leaves nothing of "
                f"total_steps={self.total_steps}. Shorten the warm-up or train longer."
            )

    def _warm_up_for(self, fraction: float) -> None:
        if self.warmup_steps or not 0.0 < fraction < 1.0:
            raise self._error(
                f"warmup_fraction={fraction} must be between 0 and 1 and stand alone; "
                f"warmup_steps is {self.warmup_steps}."
            )
        self.warmup_steps = int(fraction * self.total_steps)

    def progress(self, step: jax.Array, start: float) -> jax.Array:
        """Returns how far the step is between `start` and the end, from 0 to 1."""
        return jnp.clip((step - start) / max(self.total_steps - start, 1e-6), 0.0, 1.0)

    def between(self, remaining: jax.Array) -> jax.Array:
        """Returns the fraction of the peak where `remaining` of the way down is left."""
        return self.end_fraction + (1.0 - self.end_fraction) * remaining


class Cosine(Decaying):
    """Decays along half a cosine, from the end of the warm-up to the end."""

    class Config(Decaying.Config["Cosine"]):
        """Ends at a tenth of the peak unless told otherwise."""

        end_fraction: float = 0.1

    def after_warmup(self, step: jax.Array) -> jax.Array:
        """Returns the cosine."""
        done = self.progress(step, float(self.warmup_steps))
        return self.between(0.5 * (1.0 + jnp.cos(jnp.pi * done)))


class WarmupStableDecay(Decaying):
    """Stays at the peak and decays linearly over the last part only (arXiv 2405.18392).

    Any checkpoint of the stable part can be decayed to a finished model, or trained on.
    """

    class Config(Decaying.Config["WarmupStableDecay"]):
        """Which part of all steps the decay takes."""

        decay_fraction: float = 0.2

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        if not 0.0 <= config.decay_fraction <= 1.0:
            raise self._error(
                f"decay_fraction must be between 0 and 1, got {config.decay_fraction}."
            )
        start = (1.0 - config.decay_fraction) * self.total_steps
        self.decay_start = max(start, float(self.warmup_steps))

    def after_warmup(self, step: jax.Array) -> jax.Array:
        """Returns 1, then a line down to the end."""
        return self.between(1.0 - self.progress(step, self.decay_start))
