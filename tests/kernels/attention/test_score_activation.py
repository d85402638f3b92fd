"""Score biases and activations: both implementations against a plain formula."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import pytest

from dovetail.kernels import prefer
from dovetail.kernels.attention import (
    Causal,
    Full,
    Mask,
    ScoreBias,
    ScoreMap,
    SlidingWindow,
    SoftCap,
    attention,
)
from tests.kernels.attention.cases import aligned_call, arrays
from tests.kernels.attention.test_extras import assert_same, results


@dataclass(frozen=True)
class Distance(ScoreBias):
    """Subtracts a multiple of the distance, by head."""

    def __call__(
        self, heads: jax.Array, query_positions: jax.Array, key_positions: jax.Array, /
    ) -> jax.Array:
        return -0.1 * (heads + 1) * jnp.abs(query_positions - key_positions)


@dataclass(frozen=True)
class Sigmoid(ScoreMap):
    """Sigmoid attention: no softmax."""

    def __call__(self, scores: jax.Array, /) -> jax.Array:
        return jax.nn.sigmoid(scores - 3.0)


def plain(query: Any, key: Any, value: Any, call: dict[str, Any], **options: Any) -> jax.Array:
    """Computes the formula with every score in memory."""
    heads, width = query.shape[2:]
    key, value = (jnp.repeat(array, heads // key.shape[2], axis=2) for array in (key, value))
    scores = jnp.einsum("bshd,bthd->bhst", query, key) / width**0.5
    if options["score_map"] is not None:
        scores = options["score_map"](scores)
    places = call["q_positions_BS"]
    if options["score_bias"] is not None:
        distance = jnp.abs(places[:, None, :, None] - places[:, None, None, :])
        scores -= 0.1 * jnp.arange(1, heads + 1)[:, None, None] * distance
    allowed = call["mask"].allowed(places[:, :, None], places[:, None, :])
    if call["q_segment_ids_BS"] is not None:
        segments = call["q_segment_ids_BS"]
        allowed &= (segments[:, :, None] == segments[:, None]) & (segments != 0)[:, :, None]
    weights = jnp.where(allowed[:, None], jnp.exp(scores), 0)
    total = weights.sum(axis=-1, keepdims=True)
    weights = weights / jnp.where(total == 0, 1, total)
    if options["score_activation"] is not None:
        weights = jnp.where(allowed[:, None], jax.nn.sigmoid(scores - 3.0), 0)
    return jnp.einsum("bhst,bthw->bshw", weights, value)


@pytest.mark.parametrize("name", ["reference", "blockwise"])
@pytest.mark.parametrize(
    ("mask", "kv_heads", "is_packed", "score_map", "score_bias", "score_activation"),
    [
        (Causal(), 2, True, None, Distance(), None),
        (SlidingWindow(30), 4, False, SoftCap(2.0), Distance(), None),
        (Causal(), 1, True, None, None, Sigmoid()),
        (Full(), 2, False, SoftCap(2.0), Distance(), Sigmoid()),
    ],
    ids=str,
)
def test_it_agrees_with_the_plain_formula(
    name: str,
    mask: Mask,
    kv_heads: int,
    is_packed: bool,
    score_map: ScoreMap | None,
    score_bias: ScoreBias | None,
    score_activation: ScoreMap | None,
) -> None:
    call = aligned_call(mask, 2, 140, is_packed)
    inputs = arrays(2, 140, 140, 4, kv_heads, 8)
    options = {
        "score_map": score_map,
        "score_bias": score_bias,
        "score_activation": score_activation,
    }

    def ours(query: jax.Array, key: jax.Array, value: jax.Array) -> jax.Array:
        with prefer(attention=name):
            return attention(query, key, value, **call, **options)

    got = results(ours, inputs)
    assert_same(got, results(lambda *arrays: plain(*arrays, call, **options), inputs), 2e-5)


def test_sinks_need_a_softmax() -> None:
    call = aligned_call(Causal(), 1, 4, is_packed=False)
    inputs = arrays(1, 4, 4, 2, 2, 8)
    with pytest.raises(ValueError, match=r"expected sinks of a softmax, got sinks beside Sigmoid"):
        attention(*inputs, **call, score_activation=Sigmoid(), sinks_H=jnp.zeros(2))
