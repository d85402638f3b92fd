"""Mixture of experts on some layers: `--with moe-every:every=2`."""

from __future__ import annotations

from typing import Any

from dovetail.config import replace
from dovetail.features.feature import feature


@feature(
    "moe-every",
    kind="feed-forward",
    builds_on=("moe",),
    needs={
        "dovetail.layers:AnyFeedForward": "there is nothing to make experts of",
        "dovetail.layers:Decoder": "there are no layers to count",
    },
    excludes={
        "dovetail.layers.moe:MixtureOfExperts": "set its num_experts and top_k with key.path=value"
    },
)
def experts_on_some_layers(
    config: Any, every: int = 2, num_experts: int = 8, top_k: int = 2
) -> Any:
    """The feed-forward of each `every`-th layer becomes an expert, among others like it."""
    from dovetail.layers import AnyFeedForward, Decoder, rearrange
    from dovetail.layers.moe import MixtureOfExperts

    experts = MixtureOfExperts.Config(num_experts=num_experts, top_k=top_k)

    def mixed(layer: Any) -> Any:
        return replace(layer, AnyFeedForward, experts)

    return replace(config, Decoder, lambda old: old.set(stack=rearrange(old.stack, mixed, every)))
