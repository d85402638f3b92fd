"""Losses around losses: label smoothing and documents, alone and together."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from dovetail.config import ConfigError
from dovetail.features import NotApplicable
from dovetail.layers import NextTokenLoss
from dovetail.layers.loss import chunks
from dovetail.layers.loss.wrappers import DocumentLoss, SmoothedLoss
from dovetail.module import parameter_specs
from tests.features.representatives import every_representative, tiny
from tests.layers.loss.models import VOCAB, batch, config, first_params, losses, scores, total


def smoothed(logits: jax.Array, targets: jax.Array, smoothing: float) -> jax.Array:
    """As Optax says it."""
    labels = optax.smooth_labels(jax.nn.one_hot(targets, VOCAB), smoothing)
    return optax.softmax_cross_entropy(logits, labels)


@pytest.mark.parametrize("capped", [False, True])
def test_smoothing_is_that_of_optax(capped: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chunks, "count_chunks", lambda *_: 3)
    model = config(SmoothedLoss.Config(smoothing=0.2), capped=capped).build()
    params, weights = first_params(model), batch().loss_weights

    def reference(params: Any) -> jax.Array:
        loss_BS = smoothed(scores(model, params), batch().targets, 0.2)
        return (weights * loss_BS).sum() / weights.sum()

    mine, by_mine = jax.jit(jax.value_and_grad(lambda params: total(model, params)))(params)
    theirs, by_theirs = jax.jit(jax.value_and_grad(reference))(params)
    np.testing.assert_allclose(mine, theirs, rtol=1e-5)
    for path, gradient in by_mine.items():
        np.testing.assert_allclose(gradient, by_theirs[path], atol=1e-5, err_msg=path)


def test_what_is_held_out_is_not_smoothed() -> None:
    model = config(SmoothedLoss.Config(smoothing=0.2)).build()
    plain = config(NextTokenLoss.Config()).build()
    params = first_params(model)
    assert parameter_specs(model).keys() == parameter_specs(plain).keys()
    assert len(losses(model, params, training=True)) == 2
    held_out = list(losses(model, params, training=False).values())
    assert held_out == list(losses(plain, params).values())


def token_losses(model: Any, params: Any) -> np.ndarray:
    return np.asarray(smoothed(scores(model, params), batch().targets, 0.0))


@pytest.mark.parametrize("skip", [0, 1, 2])
def test_every_document_counts_the_same(skip: int) -> None:
    model = config(DocumentLoss.Config(skip=skip)).build()
    params = first_params(model)
    each, given = token_losses(model, params), batch()
    means = []
    for row in range(2):
        for segment in range(1, 4):
            is_inside = np.asarray(given.segment_ids[row]) == segment
            is_inside &= np.asarray(given.positions[row]) >= skip
            weights = np.where(is_inside, given.loss_weights[row], 0)
            if weights.any():
                means.append((weights * each[row]).sum() / weights.sum())
    assert len(means) == {0: 4, 1: 3, 2: 2}[skip]
    np.testing.assert_allclose(total(model, params), np.mean(means), rtol=1e-5)


def test_no_document_left_is_no_loss() -> None:
    (loss,) = losses(*built(DocumentLoss.Config(skip=8))).values()
    assert (float(loss.total), float(loss.weight)) == (0, 0)


def built(loss: Any) -> tuple[Any, Any]:
    model = config(loss).build()
    return model, first_params(model)


def test_changes_add_up_in_any_order() -> None:
    smoothing, skip = {"smoothing": 0.3}, {"skip": 1}
    one = SmoothedLoss.Config(base=DocumentLoss.Config(**skip), **smoothing)
    other = DocumentLoss.Config(base=SmoothedLoss.Config(**smoothing), **skip)
    values = [total(*built(loss)) for loss in (one, other)]
    np.testing.assert_allclose(values[0], values[1], rtol=1e-6)
    alone = total(*built(SmoothedLoss.Config(**smoothing)))
    assert abs(alone - values[0]) > 1e-3


def test_impossible_numbers_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"loss.smoothing: expected from 0 to below 1, got 1.0"):
        config(SmoothedLoss.Config(smoothing=1.0)).build()
    with pytest.raises(ConfigError, match=r"loss.skip: expected 0 or more, got -1"):
        config(DocumentLoss.Config(skip=-1)).build()


@every_representative
@pytest.mark.parametrize("feature", ["label-smoothing", "document-loss"])
def test_they_apply_and_change_no_parameter(name: str, feature: str) -> None:
    trainer = tiny(name, feature).build()
    other = "document-loss" if feature == "label-smoothing" else "label-smoothing"
    both = tiny(name, feature, other).build()
    paths = parameter_specs(tiny(name).build().model).keys()
    assert parameter_specs(trainer.model).keys() == parameter_specs(both.model).keys() == paths
    with pytest.raises(NotApplicable, match=f"--with {feature} does not apply"):
        tiny(name, feature, other, feature)


def test_chunks_that_do_not_divide(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chunks, "count_chunks", lambda *_: 3)
    x = jnp.arange(2 * 8 * 3.0).reshape(2, 8, 3)
    found = jax.value_and_grad(lambda x: chunks.sum_over_chunks(lambda x: (x**2).sum(), x))(x)
    np.testing.assert_allclose(found[0], (x**2).sum())
    np.testing.assert_allclose(found[1], 2 * x)
