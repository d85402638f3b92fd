"""A small model around a loss, and packed rows to run it on."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from dovetail.config import config_for
from dovetail.kernels.cross_entropy import SoftCap
from dovetail.models import CausalLM
from dovetail.models.llama import llama
from dovetail.module import TokenBatch, functional, initialize

VOCAB = 17
KEY = jax.random.key(0)


def config(loss: Any, *, capped: bool = False) -> CausalLM.Config:
    model = llama(vocab_size=VOCAB, width=16, num_layers=1, num_heads=2, hidden=24)
    return model.set(loss=loss, logit_map=config_for(SoftCap, cap=2.0) if capped else None)


def batch() -> TokenBatch:
    """Two rows: documents of 4, 1 and 2 tokens and padding; and one of 8."""
    random = np.random.default_rng(0)
    segments = np.array([[1, 1, 1, 1, 2, 3, 3, 0], [1] * 8], np.int32)
    positions = np.array([[0, 1, 2, 3, 0, 0, 1, 0], range(8)], np.int32)
    weights = np.array([[1, 1, 1, 0, 2, 1, 1, 0], [1] * 8], np.float32)
    tokens = random.integers(0, VOCAB, (2, 2, 8)).astype(np.int32)
    return jax.tree.map(
        jnp.asarray,
        TokenBatch(
            tokens=tokens[0],
            targets=tokens[1],
            positions=positions,
            segment_ids=segments,
            loss_weights=weights,
        ),
    )


def losses(model: Any, params: Any, training: bool = True, variables: Any = None) -> dict[str, Any]:
    _, outputs = functional(
        model, params, batch(), training=training, losses="return", variables=variables, key=KEY
    )
    return outputs.losses


def total(model: Any, params: Any, **options: Any) -> jax.Array:
    """What is minimised."""
    return sum(loss.total / loss.weight for loss in losses(model, params, **options).values())


def scores(model: Any, params: Any) -> jax.Array:
    """All scores, with the map applied."""
    x, weight, logit_map = functional(model, params, batch(), method="factored_logits")[0]
    logits = jnp.einsum("bse,ve->bsv", x, weight)
    return logits if logit_map is None else logit_map(logits)


def first_params(model: Any) -> Any:
    return initialize(model, KEY)
