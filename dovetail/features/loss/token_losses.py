"""Changes to the loss over tokens."""

from __future__ import annotations

from typing import Any

from dovetail.config import replace, select
from dovetail.features.feature import feature


@feature("z-loss", needs={"dovetail.layers:NextTokenLoss": "there is no softmax over a vocabulary"})
def z_loss(config: Any, weight: float = 1e-4) -> Any:
    """z-loss: keeps the softmax's log-normalizer close to 0 (PaLM).

    https://arxiv.org/abs/2204.02311
    """
    from dovetail.layers import NextTokenLoss

    return select(config, NextTokenLoss).set(z_loss=weight)


@feature(
    "label-smoothing",
    files=("layers/loss/wrappers.py:SmoothedLoss",),
    needs={"dovetail.layers:BaseLoss": "there are no labels"},
    excludes={
        "dovetail.layers.loss.wrappers:SmoothedLoss": "set its smoothing with key.path=value"
    },
)
def label_smoothing(config: Any, smoothing: float = 0.1) -> Any:
    """Label smoothing: spreads the probability `smoothing` over the vocabulary."""
    from dovetail.layers import BaseLoss
    from dovetail.layers.loss.wrappers import SmoothedLoss

    return replace(config, BaseLoss, SmoothedLoss.Config(smoothing=smoothing))


@feature(
    "document-loss",
    files=("layers/loss/wrappers.py:DocumentLoss",),
    needs={"dovetail.layers:BaseLoss": "there is no token loss to weight"},
    excludes={"dovetail.layers.loss.wrappers:DocumentLoss": "set its skip with key.path=value"},
    trials=({"skip": 2},),
)
def document_loss(config: Any, skip: int = 0) -> Any:
    """Per-document loss: documents weigh the same; their first `skip` tokens have no loss."""
    from dovetail.layers import BaseLoss
    from dovetail.layers.loss.wrappers import DocumentLoss

    return replace(config, BaseLoss, DocumentLoss.Config(skip=skip))
