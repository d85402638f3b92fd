"""Gradient accumulation: `--with accumulate:steps=4`."""

from __future__ import annotations

from typing import Any

from dovetail.features.feature import feature


@feature("accumulate", kind="learning")
def accumulated(config: Any, steps: int = 4) -> Any:
    """A batch goes through the model in so many parts, and the memory needed is that of one."""
    from dovetail.learner import Accumulate

    config.learner.gradients = Accumulate.Config(microbatches=steps)
    return config
