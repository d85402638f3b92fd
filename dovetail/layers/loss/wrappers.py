"""Losses that change the loss that they wrap: label smoothing, and weights by document.

L tokens of a chunk, beside the letters of all layers.
"""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp

from dovetail.config import REQUIRED, ConfigError, ConfigOf, wraps
from dovetail.layers.loss.base import BaseLoss, Logits
from dovetail.layers.loss.chunks import sum_over_chunks
from dovetail.layers.loss.next_token import NextTokenLoss
from dovetail.module import TokenBatch


class LossWrapper(BaseLoss):
    """Changes the loss that it wraps.

    A wrapper that changes the loss weights overrides `reweight`. One that adds a term takes its
    weights from there, and adds it in training only: evaluation uses the wrapped loss.
    """

    class Config(BaseLoss.Config):
        """The wrapped loss. The sizes are set by the model."""

        vocab_size: int = REQUIRED
        width: int = REQUIRED
        base: ConfigOf[BaseLoss] = wraps(NextTokenLoss.Config())

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        known = [name for name in ("vocab_size", "width") if name in config.base.fields()]
        self.base = config.base.build(**{name: getattr(config, name) for name in known})

    def reweight(self, batch: TokenBatch) -> TokenBatch:
        """Returns the batch with the loss weights that this loss uses."""
        return self.base.reweight(batch)


class SmoothedLoss(LossWrapper):
    """Label smoothing (https://arxiv.org/abs/1512.00567).

    With a probability s spread over the vocabulary, the loss grows by
    s * (target logit - mean logit). Only that term is computed here, so the plain loss remains a
    metric of its own.
    """

    class Config(LossWrapper.Config):
        """The probability that is spread over the vocabulary."""

        smoothing: float = 0.1

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        if not 0 <= config.smoothing < 1:
            raise ConfigError(
                f"{config.locate('smoothing')}: expected from 0 to below 1, got {config.smoothing}."
            )
        self.smoothing = config.smoothing

    def __call__(self, logits: Logits, batch: TokenBatch) -> None:
        """Adds the wrapped loss, and in training the smoothing term."""
        self.base(logits, batch)
        if not self.training:
            return
        batch = self.reweight(batch)
        term = self._term if logits.logit_map is None else self._mapped_term
        total = term(logits, batch)
        self.add_loss("smoothing", self.smoothing * total, batch.loss_weights.sum())

    def _term(self, logits: Logits, batch: TokenBatch) -> jax.Array:
        """Sums target logit - mean logit. It is linear in x, so no other logits are needed."""
        x_BSE, weight_VE, _ = logits
        mean_E = weight_VE.astype(jnp.float32).mean(axis=0)
        target_BSE = jnp.take(weight_VE, batch.targets, axis=0, mode="clip").astype(jnp.float32)
        term_BS = jnp.einsum("bse,bse->bs", x_BSE.astype(jnp.float32), target_BSE - mean_E)
        return (batch.loss_weights * term_BS).sum()

    def _mapped_term(self, logits: Logits, batch: TokenBatch) -> jax.Array:
        """The same with a logit map, where the mean needs all logits."""

        def term(x_BLE: jax.Array, targets_BL: jax.Array, weights_BL: jax.Array) -> jax.Array:
            logits_BLV = logits.of(x_BLE)
            index_BL1 = targets_BL[..., None]
            target_BL = jnp.take_along_axis(logits_BLV, index_BL1, axis=-1, mode="clip")[..., 0]
            return (weights_BL * (target_BL - logits_BLV.mean(axis=-1))).sum()

        return sum_over_chunks(term, logits.x_BSE, batch.targets, batch.loss_weights)


class DocumentLoss(LossWrapper):
    """Gives every document the same weight, whatever its length.

    A document is a segment in one row of the batch. The loss weights of its tokens are divided by
    their sum, so the mean loss is a mean over documents.
    """

    class Config(LossWrapper.Config):
        """How many tokens at the start of a document have no loss."""

        skip: int = 0

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        if config.skip < 0:
            raise ConfigError(f"{config.locate('skip')}: expected 0 or more, got {config.skip}.")
        self.skip = config.skip

    def __call__(self, logits: Logits, batch: TokenBatch) -> None:
        """Adds the wrapped loss with the new weights."""
        self.base(logits, self._normalized(batch))

    def reweight(self, batch: TokenBatch) -> TokenBatch:
        """Returns the batch with the loss weights that this loss uses."""
        return self.base.reweight(self._normalized(batch))

    def _normalized(self, batch: TokenBatch) -> TokenBatch:
        weights_BS = jnp.where(batch.positions < self.skip, 0, batch.loss_weights)
        rows, length = weights_BS.shape
        index = (jnp.arange(rows)[:, None], batch.segment_ids)
        # A row has at most as many segments as tokens, and segment 0 is padding.
        sums = jnp.zeros((rows, length + 1), weights_BS.dtype).at[index].add(weights_BS)
        share_BS = weights_BS / jnp.where(sums > 0, sums, 1)[index]
        return dataclasses.replace(batch, loss_weights=share_BS)
