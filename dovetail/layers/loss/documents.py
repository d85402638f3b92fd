"""A loss in which documents count, not tokens."""

from __future__ import annotations

import dataclasses

import jax.numpy as jnp

from dovetail.config import ConfigError
from dovetail.layers.loss.changed import ChangedLoss
from dovetail.layers.loss.next_token import Logits
from dovetail.module import Batch


class DocumentLoss(ChangedLoss):
    """Every document counts the same, however long it is; its first tokens may not count at all.

    A document is what of it stands in one row of the batch: a segment. Its tokens keep the weights
    that they have, divided by their sum. So the mean that is minimised is one over documents.
    """

    class Config(ChangedLoss.Config):
        """How many tokens at the beginning of a document are read but not asked for."""

        skip: int = 0

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        if config.skip < 0:
            raise ConfigError(f"{config.locate('skip')}: expected 0 or more, got {config.skip}.")
        self.skip = config.skip

    def __call__(self, logits: Logits, batch: Batch) -> None:
        """Adds the loss, with other weights."""
        self.base(logits, self._weighed(batch))

    def counted(self, batch: Batch) -> Batch:
        """Returns the batch with the weights that this loss gives its tokens."""
        return self.base.counted(self._weighed(batch))

    def _weighed(self, batch: Batch) -> Batch:
        weights_BS = jnp.where(batch.positions < self.skip, 0, batch.loss_weights)
        rows, length = weights_BS.shape
        place = (jnp.arange(rows)[:, None], batch.segment_ids)
        # A row has at most as many segments as tokens, and segment 0 is padding.
        sums = jnp.zeros((rows, length + 1), weights_BS.dtype).at[place].add(weights_BS)
        share_BS = weights_BS / jnp.where(sums > 0, sums, 1)[place]
        return dataclasses.replace(batch, loss_weights=share_BS)
