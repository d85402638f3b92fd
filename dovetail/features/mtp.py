"""Multi-token prediction: `--with mtp:depth=1`."""

from __future__ import annotations

from typing import Any

from dovetail.config import replace
from dovetail.features.feature import feature


@feature(
    "mtp",
    kind="stacks",
    files=("layers/loss/multi_token.py",),
    needs={"dovetail.models:CausalLM": "only a language model predicts tokens"},
    excludes={
        "dovetail.layers.loss.multi_token:MultiTokenLoss": "set its depth with key.path=value"
    },
    trials=({}, {"depth": 2}),
)
def multi_token_prediction(config: Any, depth: int = 1, weight: float = 0.3) -> Any:
    """While training, further heads predict the tokens after the next, each by one more layer."""
    from dovetail.layers import last_layer
    from dovetail.layers.loss.multi_token import Ahead, MultiTokenLoss
    from dovetail.models import CausalLM

    def ahead(model: Any) -> Any:
        head = Ahead.Config(layer=last_layer(model.decoder.stack), norm=model.decoder.norm)
        return model.set(
            loss=MultiTokenLoss.Config(base=model.loss, depth=depth, weight=weight, head=head)
        )

    return replace(config, CausalLM, ahead)
