"""Maximal update parametrization: `--with mup:base_width=256`."""

from __future__ import annotations

from typing import Any

from dovetail.config import replace, select
from dovetail.features.feature import feature


@feature(
    "mup",
    files=("layers/mup.py", "learner/optimizers/mup.py"),
    needs={
        "dovetail.learner:AdamW": "its learning rates by fan-in are derived for Adam",
        "dovetail.layers:BaseAttention": "there are no scores to scale",
        "dovetail.layers:Decoder": "there are no logits to scale",
    },
    excludes={
        "dovetail.learner:Muon": "learning rates by fan-in are too small for its updates; use "
        "AdamW first",
        "dovetail.learner.optimizers.mup:MupOptimizer": "it applies only once",
    },
)
def mup(config: Any, base_width: int = 256, base_head_width: int = 64) -> Any:
    """muP: scales initialization, learning rates, scores and logits with the width.

    Learning rates found at the base width transfer. At that width, with heads of the base head
    width, only the learning rates of maps with another fan-in change.
    https://arxiv.org/abs/2203.03466
    """
    from dovetail.layers import Linear
    from dovetail.layers.mup import with_mup_scale, with_scaled_readout
    from dovetail.learner import AdamW
    from dovetail.learner.optimizers.mup import MupOptimizer
    from dovetail.module import VarianceScaling

    config = replace(config, AdamW, MupOptimizer.Config(base_width=base_width))
    config = with_mup_scale(config, base_head_width)
    config = with_scaled_readout(config, base_width)
    return select(config, Linear).set(weight_init=VarianceScaling.Config())
