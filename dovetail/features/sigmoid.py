"""Sigmoid attention: `--with sigmoid`."""

from __future__ import annotations

from typing import Any

from dovetail.config import replace
from dovetail.features.feature import feature


@feature(
    "sigmoid",
    kind="attention",
    files=("layers/attention/sigmoid.py",),
    needs={"dovetail.layers:Scores": "there are no scores to weigh"},
    excludes={
        "dovetail.layers.attention.scores:SoftmaxFree": "it has no softmax to replace",
        "dovetail.layers.attention.scores:ChangedSoftmax": "it needs the softmax",
    },
)
def sigmoid_attention(config: Any, length: int | None = None) -> Any:
    """Weighs each key by itself (https://arxiv.org/abs/2409.04431); made for training's length."""
    from dovetail.layers import Scores
    from dovetail.layers.attention.sigmoid import SigmoidAttention

    length = config.input.sequence_length if length is None else length
    return replace(config, Scores, SigmoidAttention.Config(length=length))
