"""Learned positions: `--with learned-positions:length=2048`."""

from __future__ import annotations

from typing import Any

from dovetail.features.feature import feature
from dovetail.features.positions import told_positions


@feature(
    "learned-positions",
    kind="positions",
    files=("layers/positions/learned.py",),
    needs={"dovetail.layers:AnyInputPositions": "there is no place to add vectors to tokens"},
    excludes={
        "dovetail.layers.positions.learned:LearnedPositions": "set its length with key.path=value"
    },
)
def learned_positions(config: Any, length: int | None = None) -> Any:
    """Adds a learned vector a position; as many as a training sequence has, unless told."""
    from dovetail.layers.positions.learned import LearnedPositions

    length = config.input.sequence_length if length is None else length
    return told_positions(config, inputs=LearnedPositions.Config(length=length))
