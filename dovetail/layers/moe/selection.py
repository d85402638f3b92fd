"""Expert selection: top-k, group-limited top-k, and the bias of loss-free load balancing.

G groups of experts, M experts of a group, beside the letters of this folder.
"""

from __future__ import annotations

from typing import Any, Protocol

import jax
import jax.numpy as jnp

from dovetail.config import REQUIRED, Component, ConfigError
from dovetail.layers.checks import require_positive
from dovetail.module import Module, variable


class ExpertSelection(Protocol):
    """Selects experts."""

    def __call__(self, scores_BSX: jax.Array, /) -> jax.Array:
        """Returns the indices [B, S, K] of the selected experts, best first."""
        ...


class TopKSelection(Component):
    """The top-k experts by score."""

    class Config(Component.Config["TopKSelection"]):
        """Both are set by the router."""

        num_experts: int = REQUIRED
        top_k: int = REQUIRED

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        require_top_k(config)
        self.num_experts, self.top_k = config.num_experts, config.top_k

    def __call__(self, scores_BSX: jax.Array) -> jax.Array:
        """Returns the indices of the best; ties go to the lower index."""
        return jax.lax.top_k(scores_BSX, self.top_k)[1]


class GroupLimitedSelection(TopKSelection):
    """Group-limited top-k, which bounds the number of hosts per token.

    The score of a group is the sum of its two best (DeepSeek-V3, https://arxiv.org/abs/2412.19437).
    """

    class Config(TopKSelection.Config):
        """The number of expert groups, and from how many of them a token selects."""

        num_groups: int = REQUIRED
        top_groups: int = REQUIRED

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        require_positive(config, "num_groups", "top_groups")
        self.num_groups, self.top_groups = config.num_groups, config.top_groups
        _check_groups(config)

    def __call__(self, scores_BSX: jax.Array) -> jax.Array:
        """Returns the indices of the best in the selected groups."""
        shape = scores_BSX.shape
        scores_BSGM = scores_BSX.reshape(*shape[:-1], self.num_groups, -1)
        best_BSG = jax.lax.top_k(scores_BSGM, 2)[0].sum(axis=-1)
        groups = jax.lax.top_k(best_BSG, self.top_groups)[1]
        allowed_BSG = (groups[..., None] == jnp.arange(self.num_groups)).any(axis=-2)
        scores_BSGM = jnp.where(allowed_BSG[..., None], scores_BSGM, -jnp.inf)
        return super().__call__(scores_BSGM.reshape(shape))


def require_top_k(config: Any) -> None:
    """Raises unless 1 <= `top_k` <= `num_experts`."""
    require_positive(config, "num_experts", "top_k")
    if config.top_k > config.num_experts:
        raise ConfigError(
            f"{config.locate('top_k')}: a token cannot go to {config.top_k} of "
            f"{config.num_experts} experts. Set top_k to {config.num_experts} or less."
        )


def _check_groups(config: GroupLimitedSelection.Config) -> None:
    experts, groups, top = config.num_experts, config.num_groups, config.top_groups
    if experts % groups or experts // groups < 2:
        raise ConfigError(
            f"{config.locate('num_groups')}: {experts} experts do not divide into {groups} groups "
            "of 2 or more. Choose another number of groups."
        )
    if top > groups or top * (experts // groups) < config.top_k:
        raise ConfigError(
            f"{config.locate('top_groups')}: {top} of {groups} groups, with {experts // groups} "
            f"experts each, are fewer than {config.top_k} experts per token. Select more groups."
        )


class SelectionBias(Protocol):
    """A bias on the scores, for selection only, updated from the load that results.

    It is a variable, not a parameter: it has no gradient, and does not change the weights of the
    selected experts (https://arxiv.org/abs/2408.15664).
    """

    def __call__(self, scores_BSX: jax.Array, /) -> jax.Array:
        """Returns the scores by which experts are selected."""
        ...

    def update(self, counts_X: jax.Array, /) -> None:
        """Updates the bias in training, given the load of each expert."""
        ...


class NoSelectionBias(Module):
    """Selects by the unbiased scores."""

    class Config(Module.Config["NoSelectionBias"]):
        """The number of experts is set by the router."""

        num_experts: int = REQUIRED

    def __call__(self, scores_BSX: jax.Array) -> jax.Array:
        """Returns its input."""
        return scores_BSX

    def update(self, counts_X: jax.Array) -> None:
        """Does nothing."""


class LossFreeBias(Module):
    """Loss-free load balancing: a fixed step up for underloaded experts, down for the others.

    With gradient accumulation it is updated after each microbatch.
    """

    class Config(Module.Config["LossFreeBias"]):
        """The number of experts is set by the router; `rate` is the size of a step."""

        num_experts: int = REQUIRED
        rate: float = 1e-3

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        if config.rate < 0:
            raise ConfigError(f"{config.locate('rate')}: expected 0 or more, got {config.rate}.")
        self.rate = config.rate
        self.bias = variable((config.num_experts,), (None,))

    def __call__(self, scores_BSX: jax.Array) -> jax.Array:
        """Adds the bias."""
        return scores_BSX + self.bias

    def update(self, counts_X: jax.Array) -> None:
        """Moves the bias against the load."""
        load_X = counts_X.astype(jnp.float32)
        self.bias = self.bias + self.rate * jnp.sign(load_X.mean() - load_X)
