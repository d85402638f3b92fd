"""Label smoothing: a part of the probability is asked to be spread over the whole vocabulary."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from dovetail.config import ConfigError
from dovetail.kernels.cross_entropy import ScoreMap
from dovetail.layers.loss.changed import ChangedLoss
from dovetail.layers.loss.chunks import sum_over_chunks
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

    def __call__(
        self,
        x_BSE: jax.Array,
        weight_VE: jax.Array,
        batch: Batch,
        logit_map: ScoreMap | None = None,
    ) -> None:
        """Adds the plain loss, and in training what smoothing makes of it."""
        self.base(x_BSE, weight_VE, batch, logit_map)
        if not self.training:
            return
        batch = self.counted(batch)
        if logit_map is None:
            total = _excess(x_BSE, weight_VE, batch)
        else:
            total = _excess_in_chunks(x_BSE, weight_VE, batch, logit_map)
        self.add_loss("smoothing", self.share * total, batch.loss_weights.sum())


def _excess(x_BSE: jax.Array, weight_VE: jax.Array, batch: Batch) -> jax.Array:
    """Sums the target's score less the mean score: linear in x, so no score of others is needed."""
    mean_E = weight_VE.astype(jnp.float32).mean(axis=0)
    target_BSE = jnp.take(weight_VE, batch.targets, axis=0, mode="clip").astype(jnp.float32)
    excess_BS = jnp.einsum("bse,bse->bs", x_BSE.astype(jnp.float32), target_BSE - mean_E)
    return (batch.loss_weights * excess_BS).sum()


def _excess_in_chunks(
    x_BSE: jax.Array, weight_VE: jax.Array, batch: Batch, logit_map: ScoreMap
) -> jax.Array:
    """The same where scores are mapped, and their mean takes all of them."""

    def excess(x_BLE: jax.Array, targets_BL: jax.Array, weights_BL: jax.Array) -> jax.Array:
        scores_BLV = logit_map(
            jnp.einsum("ble,ve->blv", x_BLE, weight_VE, preferred_element_type=jnp.float32)
        )
        index_BL1 = targets_BL[..., None]
        target_BL = jnp.take_along_axis(scores_BLV, index_BL1, axis=-1, mode="clip")[..., 0]
        return (weights_BL * (target_BL - scores_BLV.mean(axis=-1))).sum()

    return sum_over_chunks(excess, x_BSE, batch.targets, batch.loss_weights)
