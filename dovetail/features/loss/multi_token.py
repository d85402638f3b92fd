"""Multi-token prediction: `--with mtp:depth=1`."""

from __future__ import annotations

from typing import Any

from dovetail.config import replace
from dovetail.features.feature import feature


@feature(
    "mtp",
    files=("layers/loss/multi_token.py",),
    needs={"dovetail.models:CausalLM": "only a language model predicts tokens"},
    excludes={
        "dovetail.layers.loss.multi_token:MultiTokenLoss": "set its depth with key.path=value"
    },
    trials=({}, {"depth": 2}),
)
def multi_token_prediction(config: Any, depth: int = 1, weight: float = 0.3) -> Any:
    """Multi-token prediction (MTP): extra heads predict later tokens, in training only.

    https://arxiv.org/abs/2412.19437
    """
    from dovetail.layers import last_layer
    from dovetail.layers.loss.multi_token import MultiTokenHead, MultiTokenLoss
    from dovetail.models import CausalLM

    def with_heads(model: Any) -> Any:
        head = MultiTokenHead.Config(layer=last_layer(model.decoder.stack), norm=model.decoder.norm)
        return model.set(
            loss=MultiTokenLoss.Config(base=model.loss, depth=depth, weight=weight, head=head)
        )

    return replace(config, CausalLM, with_heads)
