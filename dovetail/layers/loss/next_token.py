"""Next-token loss: output layer and cross-entropy as one part that never holds all logits."""

from __future__ import annotations

from typing import Protocol

import jax
import jax.numpy as jnp

from dovetail.config import REQUIRED
from dovetail.kernels.cross_entropy import ScoreMap, cross_entropy
from dovetail.module import Batch, Mean, Module


class TokenLoss(Protocol):
    """Adds the loss of a batch, given the decoder's vectors and the table of the vocabulary."""

    def __call__(
        self,
        x_BSE: jax.Array,
        weight_VE: jax.Array,
        batch: Batch,
        logit_map: ScoreMap | None = None,
        /,
    ) -> None:
        """Adds losses and summaries. A logit map is applied to every score."""
        ...


class AnyDeepLoss(Module):
    """A loss that has layers of its own, and so must know how wide the decoder's vectors are."""

    class Config(Module.Config["AnyDeepLoss"]):
        """The width is set by the model, wherever the loss stands among others that wrap it."""

        width: int = REQUIRED


class NextTokenLoss(Module):
    """Cross-entropy of the next token, and optionally z-loss (https://arxiv.org/abs/2204.02311)."""

    class Config(Module.Config["NextTokenLoss"]):
        """How much the squared log of the softmax's denominator counts; 0 leaves it out."""

        z_loss: float = 0.0

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self.z_loss = config.z_loss

    def __call__(
        self,
        x_BSE: jax.Array,
        weight_VE: jax.Array,
        batch: Batch,
        logit_map: ScoreMap | None = None,
    ) -> None:
        """Adds the loss, and bits per byte where the input says how many bytes a target has."""
        weights_BS = batch.loss_weights
        result = cross_entropy(
            x_BSE,
            weight_VE,
            batch.targets,
            weights_BS,
            z_loss=self.z_loss,
            logit_map=logit_map,
        )
        self.add_loss("next_token", result.loss_sum, weights_BS.sum())
        bytes_BS = batch.extras.get("target_bytes")
        if bytes_BS is not None:
            bits = result.nll_sum / jnp.log(2.0)
            self.add_summary("bits_per_byte", Mean(bits, (bytes_BS * weights_BS).sum()))
