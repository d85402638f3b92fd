"""Selection: which experts a token goes to, given its scores."""

from __future__ import annotations

from typing import Any, Protocol

import jax
import jax.numpy as jnp

from dovetail.config import REQUIRED, ConfigError, Part
from dovetail.layers.checks import require_positive


class Selection(Protocol):
    """Chooses experts."""

    def __call__(self, scores_BSX: jax.Array, /) -> jax.Array:
        """Returns the indices [B, S, K] of the chosen experts, the best first."""
        ...


class TopExperts(Part):
    """The experts with the highest scores."""

    class Config(Part.Config["TopExperts"]):
        """Both are set by the router."""

        num_experts: int = REQUIRED
        top_k: int = REQUIRED

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        require_choice(config)
        self.num_experts, self.top_k = config.num_experts, config.top_k

    def __call__(self, scores_BSX: jax.Array) -> jax.Array:
        """Returns the indices of the best; among equals the first."""
        return jax.lax.top_k(scores_BSX, self.top_k)[1]


class GroupedTopExperts(TopExperts):
    """The best experts within the best groups, so that a token visits few machines.

    A group counts as much as its two best experts together (DeepSeek-V3,
    https://arxiv.org/abs/2412.19437).
    """

    class Config(TopExperts.Config):
        """Into how many groups the experts fall, and from how many of them a token chooses."""

        num_groups: int = REQUIRED
        top_groups: int = REQUIRED

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        require_positive(config, "num_groups", "top_groups")
        self.num_groups, self.top_groups = config.num_groups, config.top_groups
        _check_groups(config)

    def __call__(self, scores_BSX: jax.Array) -> jax.Array:
        """Returns the indices of the best in the chosen groups."""
        shape = scores_BSX.shape
        # G groups, M members of a group.
        scores_BSGM = scores_BSX.reshape(*shape[:-1], self.num_groups, -1)
        best_BSG = jax.lax.top_k(scores_BSGM, 2)[0].sum(axis=-1)
        groups = jax.lax.top_k(best_BSG, self.top_groups)[1]
        allowed_BSG = (groups[..., None] == jnp.arange(self.num_groups)).any(axis=-2)
        scores_BSGM = jnp.where(allowed_BSG[..., None], scores_BSGM, -jnp.inf)
        return super().__call__(scores_BSGM.reshape(shape))


def require_choice(config: Any) -> None:
    """Raises where `top_k` is not a number of experts that can be chosen among `num_experts`."""
    require_positive(config, "num_experts", "top_k")
    if config.top_k > config.num_experts:
        raise ConfigError(
            f"{config.locate('top_k')}: a token cannot go to {config.top_k} of "
            f"{config.num_experts} experts. Set top_k to {config.num_experts} or less."
        )


def _check_groups(config: GroupedTopExperts.Config) -> None:
    experts, groups, top = config.num_experts, config.num_groups, config.top_groups
    if experts % groups or experts // groups < 2:
        raise ConfigError(
            f"{config.locate('num_groups')}: {experts} experts do not fall into {groups} groups of "
            "equal size, 2 or more. Choose another number of groups."
        )
    if top > groups or top * (experts // groups) < config.top_k:
        raise ConfigError(
            f"{config.locate('top_groups')}: {top} of {groups} groups, with {experts // groups} "
            f"experts each, leave no choice of {config.top_k} experts. Choose from more groups."
        )
