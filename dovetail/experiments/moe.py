"""Mixture of experts for any experiment: `--with moe:num_experts=8`.

Like the experiments themselves, it imports what it needs inside the function: names are listed
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
