"""A loss of documents: `--with document-loss:skip=8`."""

from __future__ import annotations

from typing import Any

from dovetail.config import replace
from dovetail.features.feature import feature


@feature(
    "document-loss",
    kind="learning",
    files=("layers/loss/documents.py",),
    needs={"dovetail.layers:AnyLoss": "there is no loss of tokens to weigh"},
    excludes={"dovetail.layers.loss.documents:DocumentLoss": "set its skip with key.path=value"},
    trials=({"skip": 2},),
)
def documents_count(config: Any, skip: int = 0) -> Any:
    """Every document counts the same; its first `skip` tokens are read but not asked for."""
    from dovetail.layers import AnyLoss
    from dovetail.layers.loss.documents import DocumentLoss

    return replace(config, AnyLoss, DocumentLoss.Config(skip=skip))
