"""Maximal update parametrisation: `--with mup:base_width=256`."""

from __future__ import annotations

from typing import Any

from dovetail.config import replace, select
from dovetail.features.feature import feature


@feature(
    "mup",
    kind="residual scaling",
    files=(
        "layers/attention/inverse_width.py",
        "layers/norms/readout.py",
        "learner/by_fan_in.py",
    ),
    needs={
        "dovetail.learner:AdamW": "its rates by fan-in are right for Adam's directions",
        "dovetail.layers:AnyAttention": "there are no scores to scale",
        "dovetail.layers:Decoder": "there is nothing that is read out",
    },
    excludes={
        "dovetail.learner:Muon": "it moves matrices by other rules than Adam's, in which rates "
        "by fan-in would be too small; give the learner AdamW first",
        "dovetail.learner.by_fan_in:ByFanIn": "once is enough",
    },
)
def maximal_updates(config: Any, base_width: int = 256, base_head_width: int = 64) -> Any:
    """Initial values, rates, scores and logits scale with the width; so rates can be found small.

    At the base width (and with heads of the base head width) only maps of another fan-in than the
    width change their rate. https://arxiv.org/abs/2203.03466
    """
    from dovetail.layers import Linear
    from dovetail.layers.attention.inverse_width import with_inverse_width
    from dovetail.layers.norms.readout import with_scaled_readout
    from dovetail.learner import AdamW
    from dovetail.learner.by_fan_in import ByFanIn
    from dovetail.module import FanScaled

    config = replace(config, AdamW, ByFanIn.Config(base_width=base_width))
    config = with_inverse_width(config, base_head_width)
    config = with_scaled_readout(config, base_width)
    return select(config, Linear).set(weight_init=FanScaled.Config())
