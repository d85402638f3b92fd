"""Averaged parameters: `--with ema:decay=0.999`."""

from __future__ import annotations

from typing import Any

from dovetail.features.feature import feature


@feature("ema", kind="learning")
def averaged(config: Any, decay: float = 0.999, warmup_steps: int = 0) -> Any:
    """Keeps a moving average of the parameters, which is what is evaluated and exported."""
    from dovetail.learner import Ema

    config.learner.ema = Ema.Config(decay=decay, warmup_steps=warmup_steps)
    return config
