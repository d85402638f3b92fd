"""z-loss: `--with z-loss:weight=1e-4`."""

from __future__ import annotations

from typing import Any

from dovetail.config import select
from dovetail.features.feature import feature


@feature(
    "z-loss",
    kind="learning",
    needs={"dovetail.layers:NextTokenLoss": "there is no softmax over a vocabulary"},
)
def held_close_to_one(config: Any, weight: float = 1e-4) -> Any:
    """Holds the softmax's denominator close to 1 (https://arxiv.org/abs/2204.02311)."""
    from dovetail.layers import NextTokenLoss

    return select(config, NextTokenLoss).set(z_loss=weight)
