"""Features that any experiment can be given by name: `--with moe:num_experts=8`.

Like the experiments themselves, each imports what it needs inside the function: names are listed
without loading JAX.
"""

from __future__ import annotations

from typing import Any

from dovetail.config import ConfigError, modifier, replace, select


@modifier("moe")
def mixture_of_experts(config: Any, num_experts: int = 8, top_k: int = 2) -> Any:
    """Every feed-forward becomes an expert, among others like it."""
    from dovetail.layers import AnyFeedForward, MixtureOfExperts

    if found := select(config, MixtureOfExperts).found:
        raise ConfigError(
            f"--with moe: {next(iter(found))} is a mixture of experts already. Set its num_experts "
            "and top_k with key.path=value."
        )
    experts = MixtureOfExperts.Config(num_experts=num_experts, top_k=top_k)
    return replace(config, AnyFeedForward, experts)


@modifier("lora")
def low_rank_adapters(config: Any, rank: int = 8, alpha: float = 16.0) -> Any:
    """Every linear map but the routers' gets an adapter, and only the adapters are trained.

    Args:
        config: the experiment; it usually begins from a run (`--with from-run:path=RUN`, before
            this one).
        rank: the inner width of the adapters.
        alpha: what an adapter adds is multiplied by alpha / rank.
    """
    from dovetail.layers import Linear, LoRA, TopKRouter

    if found := select(config, LoRA).found:
        raise ConfigError(
            f"--with lora: {next(iter(found))} has an adapter already. To begin anew from a run "
            "with adapters, export it (`dovetail export hf` merges them) and import that."
        )
    adapted = replace(config, Linear, LoRA.Config(rank=rank, alpha=alpha), outside=(TopKRouter,))
    # What the experiment freezes stays frozen, adapters too: the last pattern decides.
    adapted.learner.frozen = ("*", "!*/lora_a", "!*/lora_b", *config.learner.frozen)
    return adapted
