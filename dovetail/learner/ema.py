"""EMA: the exponential moving average of the parameters, which often evaluates better."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from dovetail.config import Component, ConfigError
from dovetail.learner.state import Arrays


class Ema(Component):
    """Averages in float32, whatever the parameters' dtype."""

    class Config(Component.Config["Ema"]):
        decay: float = 0.999
        # Without warmup, the initial parameters dominate early averages. With w warmup steps, the
        # decay of update t (from 0) is at most (1 + t) / (1 + t + w).
        warmup_steps: int = 0

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        if not 0.0 <= config.decay < 1.0:
            raise ConfigError(
                f"{config.locate('decay')}: expected 0 or more and less than 1, got {config.decay}."
            )
        if config.warmup_steps < 0:
            raise ConfigError(
                f"{config.locate('warmup_steps')}: expected 0 or more, got {config.warmup_steps}."
            )
        self.decay, self.warmup_steps = config.decay, config.warmup_steps

    def init(self, params: Arrays) -> Arrays:
        """Starts from copies of the parameters: no buffer can be donated twice."""
        return {path: jnp.array(value, jnp.float32, copy=True) for path, value in params.items()}

    def update(self, averages: Arrays, params: Arrays, step: jax.Array) -> Arrays:
        """Updates the averages with the parameters of update `step` (from 0)."""
        count = step.astype(jnp.float32) + 1.0
        decay = jnp.minimum(self.decay, count / (count + self.warmup_steps))
        return {
            path: decay * average + (1.0 - decay) * params[path].astype(jnp.float32)
            for path, average in averages.items()
        }
