"""Cross-entropy as the formula says it, with all logits in memory: the standard for tests."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from dovetail.kernels.cross_entropy.op import CrossEntropy, cross_entropy_op
from dovetail.kernels.score_maps import ScoreMap


@cross_entropy_op.register("reference", slow=lambda *_, **__: True)
def reference(
    x_BSE: jax.Array,
    weight_VE: jax.Array,
    targets_BS: jax.Array,
    weights_BS: jax.Array,
    *,
    z_loss: float,
    logit_map: ScoreMap | None = None,
) -> CrossEntropy:
    """Computes the loss from all logits at once; see `cross_entropy` for the arguments."""
    logits_BSV = jnp.einsum("bse,ve->bsv", x_BSE, weight_VE, preferred_element_type=jnp.float32)
    if logit_map is not None:
        logits_BSV = logit_map(logits_BSV)
    log_sum_BS = jax.nn.logsumexp(logits_BSV, axis=-1)
    at_target_BS = jnp.take_along_axis(logits_BSV, targets_BS[..., None], axis=-1, mode="clip")[
        ..., 0
    ]
    weights_BS = weights_BS.astype(jnp.float32)
    nll_BS = log_sum_BS - at_target_BS
    nll_sum = (weights_BS * nll_BS).sum()
    z_sum = (weights_BS * log_sum_BS**2).sum()
    correct_BS = at_target_BS >= logits_BSV.max(axis=-1)
    return CrossEntropy(
        nll_sum + z_loss * z_sum,
        jax.lax.stop_gradient(nll_sum),
        jax.lax.stop_gradient((weights_BS * correct_BS).sum()),
    )
