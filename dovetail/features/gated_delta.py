"""Gated DeltaNet beside attention: `--with gated-delta:every=4`."""

from __future__ import annotations

from typing import Any

from dovetail.features.feature import feature


@feature(
    "gated-delta",
    kind="stacks",
    files=("layers/recurrent/gated_delta.py",),
    needs={"dovetail.layers:AnyAttention": "there is nothing to stand in for"},
    trials=({"every": 2}, {"every": 0}),
)
def gated_delta(config: Any, every: int = 4) -> Any:
    """Every layer but each fourth mixes tokens by a state it rewrites (every=0: all layers do)."""
    from dovetail.layers import AnyAttention
    from dovetail.layers.recurrent.gated_delta import GatedDelta
    from dovetail.layers.stack.hybrid import replace_but_every

    def mixer(old: Any) -> GatedDelta.Config:
        return GatedDelta.Config(num_heads=old.num_heads)

    return replace_but_every(config, AnyAttention, mixer, every)
