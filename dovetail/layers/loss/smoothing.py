"""Label smoothing: a part of the probability is asked to be spread over the whole vocabulary."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from dovetail.config import ConfigError
from dovetail.layers.loss.changed import ChangedLoss
from dovetail.layers.loss.chunks import sum_over_chunks
from dovetail.layers.loss.next_token import Logits
from dovetail.module import Batch


class SmoothedLoss(ChangedLoss):
    """The cross-entropy with targets that are spread out (https://arxiv.org/abs/1512.00567).

    With a share s given to all tokens alike, it is more than the plain one by s times the target's
    score less the mean score. Only that is computed here: the plain loss stays a figure of its own.
    """

    class Config(ChangedLoss.Config):
        """The share that is spread."""

        share: float = 0.1

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        if not 0 <= config.share < 1:
            raise ConfigError(
                f"{config.locate('share')}: expected from 0 to below 1, got {config.share}."
            )
        self.share = config.share

    def __call__(self, logits: Logits, batch: Batch) -> None:
        """Adds the plain loss, and in training what smoothing makes of it."""
        self.base(logits, batch)
        if not self.training:
            return
        batch = self.counted(batch)
        total = (_excess if logits.bound is None else _excess_in_chunks)(logits, batch)
        self.add_loss("smoothing", self.share * total, batch.loss_weights.sum())


def _excess(logits: Logits, batch: Batch) -> jax.Array:
    """Sums the target's score less the mean score: linear in x, so no score of others is needed."""
    x_BSE, weight_VE, _ = logits
    mean_E = weight_VE.astype(jnp.float32).mean(axis=0)
    target_BSE = jnp.take(weight_VE, batch.targets, axis=0, mode="clip").astype(jnp.float32)
    excess_BS = jnp.einsum("bse,bse->bs", x_BSE.astype(jnp.float32), target_BSE - mean_E)
    return (batch.loss_weights * excess_BS).sum()


def _excess_in_chunks(logits: Logits, batch: Batch) -> jax.Array:
    """The same where scores are bounded, and their mean takes all of them."""

    def excess(x_BLE: jax.Array, targets_BL: jax.Array, weights_BL: jax.Array) -> jax.Array:
        scores_BLV = logits.of(x_BLE)
        index_BL1 = targets_BL[..., None]
        target_BL = jnp.take_along_axis(scores_BLV, index_BL1, axis=-1, mode="clip")[..., 0]
        return (weights_BL * (target_BL - scores_BLV.mean(axis=-1))).sum()

    return sum_over_chunks(excess, logits.x_BSE, batch.targets, batch.loss_weights)
