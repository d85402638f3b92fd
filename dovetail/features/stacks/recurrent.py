"""Recurrent layers in place of attention."""

from __future__ import annotations

from typing import Any

from dovetail.features.feature import feature


@feature(
    "mamba2",
    files=("layers/recurrent/mamba2.py",),
    needs={"dovetail.layers:BaseAttention": "there is no attention to replace"},
    trials=({"every": 2}, {"every": 0}),
)
def mamba2(config: Any, every: int = 4, state_width: int = 128) -> Any:
    """Mamba-2 in place of attention, except in every `every`-th layer (every=0: in all).

    https://arxiv.org/abs/2405.21060
    """
    from dovetail.layers import BaseAttention
    from dovetail.layers.recurrent.mamba2 import Mamba2
    from dovetail.layers.stack.hybrid import replace_but_every

    def mixer(old: Any) -> Mamba2.Config:
        return Mamba2.Config(num_heads=old.num_heads, state_width=state_width)

    return replace_but_every(config, BaseAttention, mixer, every)


@feature(
    "gated-delta",
    files=("layers/recurrent/gated_delta.py",),
    needs={"dovetail.layers:BaseAttention": "there is no attention to replace"},
    trials=({"every": 2}, {"every": 0}),
)
def gated_delta(config: Any, every: int = 4) -> Any:
    """Gated DeltaNet in place of attention, except in every `every`-th layer (every=0: in all).

    https://arxiv.org/abs/2412.06464
    """
    from dovetail.layers import BaseAttention
    from dovetail.layers.recurrent.gated_delta import GatedDelta
    from dovetail.layers.stack.hybrid import replace_but_every

    def mixer(old: Any) -> GatedDelta.Config:
        return GatedDelta.Config(num_heads=old.num_heads)

    return replace_but_every(config, BaseAttention, mixer, every)
