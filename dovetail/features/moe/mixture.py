"""Mixture of experts: on every layer, on some, and with a shared expert."""

from __future__ import annotations

from typing import Any

from dovetail.config import replace
from dovetail.features.feature import feature


@feature(
    "moe",
    files=("layers/moe/", "kernels/all_to_all/", "kernels/grouped_matmul/", "models/moe.py"),
    needs={"dovetail.layers:BaseFeedForward": "there is no feed-forward to make experts of"},
    excludes={
        "dovetail.layers.moe:MixtureOfExperts": "set its num_experts and top_k with key.path=value"
    },
)
def moe(config: Any, num_experts: int = 8, top_k: int = 2) -> Any:
    """Mixture of experts (MoE) in place of every feed-forward."""
    from dovetail.layers import BaseFeedForward
    from dovetail.layers.moe import MixtureOfExperts

    experts = MixtureOfExperts.Config(num_experts=num_experts, top_k=top_k)
    return replace(config, BaseFeedForward, experts)


@feature(
    "moe-every",
    builds_on=("moe",),
    needs={
        "dovetail.layers:BaseFeedForward": "there is no feed-forward to make experts of",
        "dovetail.layers:Decoder": "there are no layers to count",
    },
    excludes={
        "dovetail.layers.moe:MixtureOfExperts": "set its num_experts and top_k with key.path=value"
    },
)
def moe_every(config: Any, every: int = 2, num_experts: int = 8, top_k: int = 2) -> Any:
    """Mixture of experts in place of the feed-forward of every `every`-th layer."""
    from dovetail.layers import BaseFeedForward, Decoder, rearrange
    from dovetail.layers.moe import MixtureOfExperts

    experts = MixtureOfExperts.Config(num_experts=num_experts, top_k=top_k)

    def mixed(layer: Any) -> Any:
        return replace(layer, BaseFeedForward, experts)

    return replace(config, Decoder, lambda old: old.set(stack=rearrange(old.stack, mixed, every)))


@feature(
    "shared-expert",
    builds_on=("moe",),
    needs={"dovetail.layers.moe:MixtureOfExperts": "there are no routed experts"},
)
def shared_expert(config: Any) -> Any:
    """Shared expert: every token also visits one more expert (DeepSeekMoE).

    A mixture that has shared experts keeps them (https://arxiv.org/abs/2401.06066).
    """
    from dovetail.layers.moe import MixtureOfExperts

    def shared(mixture: Any) -> Any:
        return mixture if mixture.shared is not None else mixture.set(shared=mixture.expert)

    return replace(config, MixtureOfExperts, shared)
