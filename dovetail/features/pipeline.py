"""Pipelines: `--with pipeline:microbatches=8,schedule=1f1b mesh.pipeline=4`."""

from __future__ import annotations

from typing import Any, Literal

from dovetail.features.feature import feature


@feature(
    "pipeline",
    kind="learning",
    trials=({"microbatches": 2}, {"microbatches": 2, "schedule": "gpipe"}),
)
def pipelined(
    config: Any,
    microbatches: int = 8,
    schedule: Literal["1f1b", "gpipe"] = "1f1b",
    rounds: int = 1,
) -> Any:
    """Devices along the mesh axis `pipeline` hold different layers, and hand micro-batches on."""
    from dovetail.learner import GPipe, OneForwardOneBackward

    kind: Any = {"1f1b": OneForwardOneBackward, "gpipe": GPipe}[schedule]
    config.learner.gradients = kind.Config(microbatches=microbatches, rounds=rounds)
    return config
