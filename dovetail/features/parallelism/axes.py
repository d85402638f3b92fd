"""Pipeline and sequence parallelism."""

from __future__ import annotations

from typing import Any, Literal

from dovetail.features.feature import feature


@feature(
    "pipeline",
    trials=({"microbatches": 2}, {"microbatches": 2, "schedule": "gpipe"}),
)
def pipeline(
    config: Any,
    microbatches: int = 8,
    schedule: Literal["1f1b", "gpipe"] = "1f1b",
    repeats: int = 1,
) -> Any:
    """Pipeline parallelism over the mesh axis `pipeline`."""
    from dovetail.learner import GPipe, OneForwardOneBackward

    kind: Any = {"1f1b": OneForwardOneBackward, "gpipe": GPipe}[schedule]
    config.learner.gradients = kind.Config(microbatches=microbatches, repeats=repeats)
    return config


@feature("sequence-parallel")
def sequence_parallel(config: Any) -> Any:
    """Sequence parallelism: shards activations between layers over the mesh axis `model`, too.

    https://arxiv.org/abs/2205.05198
    """
    config.rules.rules = {**config.rules.rules, "residual_sequence": ("sequence", "model")}
    return config
