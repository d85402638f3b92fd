"""Parameter-efficient fine-tuning, usually after `--with from-run:path=RUN`."""

from __future__ import annotations

from typing import Any

from dovetail.config import replace
from dovetail.features.feature import feature

_NEEDS = {"dovetail.layers:Linear": "there are no linear layers to adapt"}
_EXCLUDES = {
    "dovetail.layers.linear.adapters:Adapter": "to fine-tune a run with adapters once more, export "
    "it (`dovetail export hf` merges them) and import the result"
}


@feature("lora", files=("layers/linear/adapters.py:LoRA",), needs=_NEEDS, excludes=_EXCLUDES)
def lora(config: Any, rank: int = 8, alpha: float = 16.0) -> Any:
    """LoRA: trains low-rank adapters on every linear layer, and nothing else.

    `PrecisionSensitive` components get none (https://arxiv.org/abs/2106.09685).
    """
    from dovetail.layers import Linear, PrecisionSensitive
    from dovetail.layers.linear.adapters import LoRA

    adapter = LoRA.Config(rank=rank, alpha=alpha)
    adapted = replace(config, Linear, adapter, outside=(PrecisionSensitive,))
    # The last matching pattern decides: what the experiment freezes stays frozen.
    adapted.learner.frozen = ("*", "!*/lora_a", "!*/lora_b", *config.learner.frozen)
    return adapted


@feature("dora", files=("layers/linear/adapters.py:DoRA",), needs=_NEEDS, excludes=_EXCLUDES)
def dora(config: Any, rank: int = 8, alpha: float = 16.0) -> Any:
    """DoRA: LoRA with a trained magnitude per output of each linear layer.

    https://arxiv.org/abs/2402.09353
    """
    from dovetail.layers import Linear, PrecisionSensitive
    from dovetail.layers.linear.adapters import DoRA

    adapter = DoRA.Config(rank=rank, alpha=alpha)
    adapted = replace(config, Linear, adapter, outside=(PrecisionSensitive,))
    # The last matching pattern decides: what the experiment freezes stays frozen.
    adapted.learner.frozen = ("*", "!*/dora_*", *config.learner.frozen)
    return adapted


@feature("freeze")
def freeze(config: Any, patterns: tuple[str, ...] = ("decoder/embedding/*",)) -> Any:
    """Freezes the parameters whose paths match a pattern; `!pattern` unfreezes."""
    config.learner.frozen = (*config.learner.frozen, *patterns)
    return config
