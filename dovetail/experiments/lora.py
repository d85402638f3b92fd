"""Adapters for any experiment: `--with lora:rank=8`.

Like the experiments themselves, it imports what it needs inside the function: names are listed
without loading JAX.
"""

from __future__ import annotations

from typing import Any

from dovetail.config import ConfigError, modifier, replace, select


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
