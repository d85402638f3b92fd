"""The cross-entropy op: output layer and next-token loss fused, so that logits are not saved.

B batch, S sequence, E embed, V vocabulary.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp

from dovetail.kernels.dispatch import Op
from dovetail.kernels.score_maps import ScoreMap

cross_entropy_op = Op("cross_entropy")  # `__init__.py` lists its implementations


class CrossEntropy(NamedTuple):
    """Sums over all tokens, each times its weight. Divide by the sum of the weights for means.

    Only `loss_sum` has a gradient; the others are metrics, and are constants to autodiff.

    Attributes:
        loss_sum: the loss to train on, with the z-loss in it.
        nll_sum: the negative log-likelihood of the targets, in nats, without the z-loss.
        correct_sum: how many targets have the highest logit of all (a tie counts).
    """

    loss_sum: jax.Array
    nll_sum: jax.Array
    correct_sum: jax.Array


def cross_entropy(
    x_BSE: jax.Array,
    weight_VE: jax.Array,
    targets_BS: jax.Array,
    weights_BS: jax.Array,
    *,
    z_loss: float = 0.0,
    logit_map: ScoreMap | None = None,
) -> CrossEntropy:
    """Computes the cross-entropy of the targets under the logits `x @ weight.T`.

    Args:
        x_BSE: the final hidden states.
        weight_VE: the output layer (LM head), a row for each token of the vocabulary.
        targets_BS: the target tokens; any value where the loss weight is 0.
        weights_BS: the loss weight of each token.
        z_loss: the coefficient of the squared logsumexp of the logits, a penalty that keeps the
            softmax's denominator close to 1 (https://arxiv.org/abs/2204.02311).
        logit_map: applied to each logit before the softmax; None means nothing.

    Returns:
        The sums, computed in float32 whatever the dtype of the inputs.
    """
    _check(x_BSE, weight_VE, targets_BS, weights_BS)
    return cross_entropy_op(
        x_BSE, weight_VE, targets_BS, weights_BS, z_loss=z_loss, logit_map=logit_map
    )


def _check(
    x_BSE: jax.Array, weight_VE: jax.Array, targets_BS: jax.Array, weights_BS: jax.Array
) -> None:
    if x_BSE.ndim != 3 or weight_VE.ndim != 2 or x_BSE.shape[-1] != weight_VE.shape[-1]:
        raise _wrong(
            "x of [batch, sequence, embed] and weight of [vocabulary, embed]",
            f"{x_BSE.shape} and {weight_VE.shape}",
        )
    for name, array, kind in (
        ("targets_BS", targets_BS, jnp.integer),
        ("weights_BS", weights_BS, jnp.floating),
    ):
        if array.shape != x_BSE.shape[:2] or not jnp.issubdtype(array.dtype, kind):
            raise _wrong(
                f"{name} of shape {x_BSE.shape[:2]} and {kind.__name__} dtype",
                f"{array.shape} {array.dtype}",
            )


def _wrong(expected: str, got: str) -> ValueError:
    return ValueError(f"cross_entropy: expected {expected}, got {got}.")
