"""Cross-entropy by its formula, with all logits in memory: the reference for tests.

B batch, S sequence, E embed, V vocabulary.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp

from dovetail.kernels.cross_entropy.op import CrossEntropy
from dovetail.kernels.dispatch import implementation
from dovetail.kernels.score_maps import ScoreMap


@implementation("reference", slow=lambda *_, **__: True)
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
    lse_BS = jax.nn.logsumexp(logits_BSV, axis=-1)
    target_logit_BS = jnp.take_along_axis(logits_BSV, targets_BS[..., None], axis=-1, mode="clip")[
        ..., 0
    ]
    weights_BS = weights_BS.astype(jnp.float32)
    nll_BS = lse_BS - target_logit_BS
    nll_sum = (weights_BS * nll_BS).sum()
    z_sum = (weights_BS * lse_BS**2).sum()
    correct_BS = target_logit_BS >= logits_BSV.max(axis=-1)
    return CrossEntropy(
        nll_sum + z_loss * z_sum,
        jax.lax.stop_gradient(nll_sum),
        jax.lax.stop_gradient((weights_BS * correct_BS).sum()),
    )
