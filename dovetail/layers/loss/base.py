"""The base of token losses, and the logits that they are given.

The output head and the cross-entropy are fused, so the logits of all tokens never exist at once.

L tokens of a chunk, beside the letters of all layers.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol

import jax
import jax.numpy as jnp

from dovetail.kernels.cross_entropy import ScoreMap
from dovetail.module import Module, TokenBatch


class Logits(NamedTuple):
    """The logits of all next tokens in factored form, because [B, S, V] would not fit.

    Attributes:
        x_BSE: the output of the decoder.
        weight_VE: the output head.
        logit_map: applied to every logit, such as a soft cap.
    """

    x_BSE: jax.Array
    weight_VE: jax.Array
    logit_map: ScoreMap | None = None

    def of(self, x_BLE: jax.Array) -> jax.Array:
        """Returns the logits [B, L, V] of some tokens, in float32."""
        logits_BLV = jnp.einsum(
            "ble,ve->blv", x_BLE, self.weight_VE, preferred_element_type=jnp.float32
        )
        return logits_BLV if self.logit_map is None else self.logit_map(logits_BLV)


class TokenLoss(Protocol):
    """Adds the loss of a batch, given the logits of its next tokens."""

    def __call__(self, logits: Logits, batch: TokenBatch, /) -> None:
        """Adds losses and summaries."""
        ...


class BaseLoss(Module):
    """The base of token losses: `replace(config, BaseLoss, ...)` finds them all."""

    class Config(Module.Config["BaseLoss"]):
        """No common fields."""

    def __call__(self, logits: Logits, batch: TokenBatch) -> None:
        """Adds losses and summaries."""
        raise NotImplementedError

    def reweight(self, batch: TokenBatch) -> TokenBatch:
        """Returns the batch with the loss weights that this loss uses."""
        return batch
