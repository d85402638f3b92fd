"""Mamba-2 beside attention: `--with mamba2:every=4`."""

from __future__ import annotations

from typing import Any

from dovetail.features.feature import feature


@feature(
    "mamba2",
    kind="stacks",
    files=("layers/recurrent/mamba2.py",),
    needs={"dovetail.layers:AnyAttention": "there is nothing to stand in for"},
    trials=({"every": 2}, {"every": 0}),
)
def mamba2(config: Any, every: int = 4, state_width: int = 128) -> Any:
    """Every layer but each fourth mixes tokens by a fading state (every=0: all layers do)."""
    from dovetail.layers import AnyAttention
    from dovetail.layers.recurrent.mamba2 import Mamba2
    from dovetail.layers.stack.hybrid import replace_but_every

    def mixer(old: Any) -> Mamba2.Config:
        return Mamba2.Config(num_heads=old.num_heads, state_width=state_width)

    return replace_but_every(config, AnyAttention, mixer, every)
