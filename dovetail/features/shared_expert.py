"""A shared expert: `--with shared-expert`."""

from __future__ import annotations

from typing import Any

from dovetail.config import replace
from dovetail.features.feature import feature


@feature(
    "shared-expert",
    kind="feed-forward",
    builds_on=("moe",),
    needs={"dovetail.layers.moe:MixtureOfExperts": "there are no routed experts to stand beside"},
)
def shared_experts(config: Any) -> Any:
    """Beside the routed experts stands one, as wide as one of them, that every token visits.

    A mixture that has one already keeps it (DeepSeekMoE, https://arxiv.org/abs/2401.06066).
    """
    from dovetail.layers.moe import MixtureOfExperts

    def shared(mixture: Any) -> Any:
        return mixture if mixture.shared is not None else mixture.set(shared=mixture.expert)

    return replace(config, MixtureOfExperts, shared)
