"""Gradient accumulation and parameter averaging."""

from __future__ import annotations

from typing import Any

from dovetail.features.feature import feature


@feature("accumulate")
def accumulate(config: Any, steps: int = 4) -> Any:
    """Gradient accumulation over `steps` microbatches."""
    from dovetail.learner import Accumulate

    config.learner.gradients = Accumulate.Config(microbatches=steps)
    return config


@feature("ema")
def ema(config: Any, decay: float = 0.999, warmup_steps: int = 0) -> Any:
    """Exponential moving average (EMA) of the parameters, for evaluation and export."""
    from dovetail.learner import Ema

    config.learner.ema = Ema.Config(decay=decay, warmup_steps=warmup_steps)
    return config
