"""Mixture of experts: `--with moe:num_experts=8`."""

from __future__ import annotations

from typing import Any

from dovetail.config import replace
from dovetail.features.feature import feature


@feature(
    "moe",
    kind="feed-forward",
    files=("layers/moe/", "kernels/exchange/", "kernels/grouped_matmul/", "models/mixtures.py"),
    needs={"dovetail.layers:AnyFeedForward": "there is nothing to make experts of"},
    excludes={
        "dovetail.layers.moe:MixtureOfExperts": "set its num_experts and top_k with key.path=value"
    },
)
def mixture_of_experts(config: Any, num_experts: int = 8, top_k: int = 2) -> Any:
    """Every feed-forward becomes an expert, among others like it."""
    from dovetail.layers import AnyFeedForward
    from dovetail.layers.moe import MixtureOfExperts

    experts = MixtureOfExperts.Config(num_experts=num_experts, top_k=top_k)
    return replace(config, AnyFeedForward, experts)
