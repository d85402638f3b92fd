"""Next-token loss: the cross-entropy of every token, given those before it."""

from __future__ import annotations

import jax.numpy as jnp

from dovetail.kernels.cross_entropy import cross_entropy
from dovetail.layers.loss.base import BaseLoss, Logits
from dovetail.module import Mean, TokenBatch


class NextTokenLoss(BaseLoss):
    """Cross-entropy of the next token, and optionally z-loss (https://arxiv.org/abs/2204.02311)."""

    class Config(BaseLoss.Config):
        """The coefficient of the z-loss, the squared logsumexp of the logits."""

        z_loss: float = 0.0

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self.z_loss = config.z_loss

    def __call__(self, logits: Logits, batch: TokenBatch) -> None:
        """Adds the loss, and bits per byte where the batch has the bytes of each target."""
        weights_BS = batch.loss_weights
        result = cross_entropy(
            logits.x_BSE,
            logits.weight_VE,
            batch.targets,
            weights_BS,
            z_loss=self.z_loss,
            logit_map=logits.logit_map,
        )
        self.add_loss("next_token", result.loss_sum, weights_BS.sum())
        bytes_BS = batch.extras.get("target_bytes")
        if bytes_BS is not None:
            bits = result.nll_sum / jnp.log(2.0)
            self.add_summary("bits_per_byte", Mean(bits, (bytes_BS * weights_BS).sum()))
