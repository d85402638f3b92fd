"""Next-token loss: output layer and cross-entropy as one part that never holds all logits."""

from __future__ import annotations

from typing import NamedTuple, Protocol

import jax
import jax.numpy as jnp

from dovetail.kernels.cross_entropy import ScoreMap, cross_entropy
from dovetail.module import Batch, Mean, Module


class Logits(NamedTuple):
    """The scores of all next tokens as what they are made of: all of them would not fit.

    Attributes:
        x_BSE: the decoder's vectors.
        weight_VE: the table of the vocabulary.
        bound: what is applied to every score.
    """

    x_BSE: jax.Array
    weight_VE: jax.Array
    bound: ScoreMap | None = None

    def of(self, x_BLE: jax.Array) -> jax.Array:
        """Returns the scores [B, L, V] of some of the vectors, in float32."""
        scores_BLV = jnp.einsum(
            "ble,ve->blv", x_BLE, self.weight_VE, preferred_element_type=jnp.float32
        )
        return scores_BLV if self.bound is None else self.bound(scores_BLV)


class TokenLoss(Protocol):
    """Adds the loss of a batch, given the scores of its next tokens."""

    def __call__(self, logits: Logits, batch: Batch, /) -> None:
        """Adds losses and summaries."""
        ...


class AnyLoss(Module):
    """What losses of next tokens have in common: `replace(config, AnyLoss, ...)` finds them."""

    class Config(Module.Config["AnyLoss"]):
        """Nothing that all of them can be told."""

    def __call__(self, logits: Logits, batch: Batch) -> None:
        """Adds losses and summaries."""
        raise NotImplementedError

    def counted(self, batch: Batch) -> Batch:
        """Returns the batch with the weights that this loss gives its tokens."""
        return batch


class NextTokenLoss(AnyLoss):
    """Cross-entropy of the next token, and optionally z-loss (https://arxiv.org/abs/2204.02311)."""

    class Config(AnyLoss.Config):
        """How much the squared log of the softmax's denominator counts; 0 leaves it out."""

        z_loss: float = 0.0

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self.z_loss = config.z_loss

    def __call__(self, logits: Logits, batch: Batch) -> None:
        """Adds the loss, and bits per byte where the input says how many bytes a target has."""
        weights_BS = batch.loss_weights
        result = cross_entropy(
            logits.x_BSE,
            logits.weight_VE,
            batch.targets,
            weights_BS,
            z_loss=self.z_loss,
            logit_map=logits.bound,
        )
        self.add_loss("next_token", result.loss_sum, weights_BS.sum())
        bytes_BS = batch.extras.get("target_bytes")
        if bytes_BS is not None:
            bits = result.nll_sum / jnp.log(2.0)
            self.add_summary("bits_per_byte", Mean(bits, (bytes_BS * weights_BS).sum()))
