"""Experts that choose tokens: what reaches a token, written out by hand."""

from __future__ import annotations

import math
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

from dovetail.config import Config, ConfigError, select
from dovetail.generate import with_kv_cache
from dovetail.layers import HasDecodingForm
from dovetail.layers.moe import Dropless, MixtureOfExperts, ScoreWeights, TopKRouter
from dovetail.layers.moe.capacity import ExpertChoice
from dovetail.models.llama import llama
from dovetail.module import functional
from tests.layers.cases import SEQUENCE, mixture, random_params, vectors

X = np.asarray(vectors())
EXPERTS, CHOICES = 4, 2


def choosing(factor: float = 1.0) -> MixtureOfExperts.Config:
    return mixture().set(dispatch=ExpertChoice.Config(factor=factor))


def feed_forward(params: Any, expert: int, x: np.ndarray) -> np.ndarray:
    gate, up, down = (np.asarray(params[f"{n}/weight"][expert]) for n in ("gate", "up", "down"))
    hidden = x @ gate
    return (hidden / (1 + np.exp(-hidden)) * (x @ up)) @ down


def by_hand(params: Any, capacity: int) -> tuple[np.ndarray, float]:
    """Each expert takes the best tokens of a row; also the share of tokens that nobody takes."""
    result, taken = np.zeros_like(X), np.zeros(X.shape[:2], bool)
    exponents = np.exp(X @ np.asarray(params["router/projection/weight"]))
    scores = exponents / exponents.sum(-1, keepdims=True)
    for row, expert in np.ndindex(len(X), EXPERTS):
        for token in np.argsort(-scores[row, :, expert])[:capacity]:
            taken[row, token] = True
            mapped = feed_forward(params, expert, X[row, token])
            result[row, token] += scores[row, token, expert] * mapped
    return result, 1 - taken.mean()


@pytest.mark.parametrize("factor", [0.5, 1.0, 1.5, 9.0])
def test_experts_take_the_tokens_that_want_them_most(factor: float) -> None:
    model = choosing(factor).build()
    params = random_params(model)
    capacity = min(SEQUENCE, math.ceil(factor * SEQUENCE * CHOICES / EXPERTS))
    result, outputs = functional(model, params, jnp.asarray(X))
    expected, untaken = by_hand(params, capacity)
    np.testing.assert_allclose(result, expected, atol=1e-5)
    (summary,) = (value for path, value in outputs.summaries.items() if "untaken" in path)
    np.testing.assert_allclose(summary.value(), untaken, atol=1e-6)
    assert (untaken > 0) == (factor == 0.5)


def test_a_token_depends_on_others_of_its_row_alone() -> None:
    model = choosing(0.5).build()
    params = random_params(model)
    before, _ = functional(model, params, jnp.asarray(X))
    changed = X.copy()
    changed[0, -1] *= 5
    after, _ = functional(model, params, jnp.asarray(changed))
    np.testing.assert_array_equal(before[1:], after[1:])
    assert not np.allclose(before[0, :-1], after[0, :-1])


def test_in_generation_tokens_choose_by_the_same_weights() -> None:
    config = choosing(9.0).set(
        top_k=EXPERTS, router=TopKRouter.Config(weights=ScoreWeights.Config())
    )
    assert isinstance(config.dispatch, HasDecodingForm)
    decoding = config.clone(dispatch=config.dispatch.for_decoding())
    assert isinstance(decoding.dispatch, Dropless.Config)
    # All experts for all tokens: then both ways of choosing are the same.
    params = random_params(config.build())
    trained, _ = functional(config.build(), params, jnp.asarray(X))
    decoded, _ = functional(decoding.build(), params, jnp.asarray(X))
    np.testing.assert_allclose(trained, decoded, atol=1e-5)


def test_a_model_that_decodes_has_none() -> None:
    model: Config[Any] = llama(vocab_size=32, width=16, num_layers=2, num_heads=2, hidden=24)
    model.decoder.stack.layer.feed_forward = choosing().clone()
    decoding = with_kv_cache(model, 8)
    assert len(select(model, ExpertChoice)) == 1
    assert len(select(decoding, ExpertChoice)) == 0
    assert len(select(decoding, Dropless)) == 1


def test_a_factor_of_zero_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"dispatch\.factor: expected above 0, got 0.0"):
        choosing(0.0).build()
