"""The balance loss reaches the training loss, through a whole model and the learner."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dovetail.config import replace
from dovetail.layers import FeedForward
from dovetail.layers.moe import (
    Capacity,
    LoadBalanceLoss,
    LossFreeBias,
    MixtureOfExperts,
    RouterZLoss,
    TopKRouter,
)
from dovetail.learner import Accumulate, Autodiff, ConstantSchedule, Learner
from dovetail.models.llama import llama
from dovetail.module import TokenBatch, initialize, initialize_variables

ROUTER = "decoder/stack/layer/feed_forward/router/projection/weight"
BALANCE = "decoder/stack/layer/feed_forward/losses/balance/load_balance"
BIAS = "decoder/stack/layer/feed_forward/router/bias/bias"
VOCABULARY = 32


def batch(rows: int = 4, length: int = 8) -> TokenBatch:
    tokens = jax.random.randint(jax.random.key(0), (rows, length + 1), 0, VOCABULARY)
    positions = jnp.tile(jnp.arange(length), (rows, 1))
    return TokenBatch(
        tokens=tokens[:, :-1],
        targets=tokens[:, 1:],
        positions=positions,
        segment_ids=jnp.ones_like(positions),
        loss_weights=jnp.ones((rows, length)),
    )


def model(**values: Any) -> Any:
    plain = llama(vocab_size=VOCABULARY, width=16, num_layers=2, num_heads=2, hidden=24)
    experts = MixtureOfExperts.Config(num_experts=4, top_k=2, **values)
    return replace(plain, FeedForward, experts).build()


def step(model: Any, **values: Any) -> Any:
    """Takes one step; returns the first and the next state, and the report."""
    learner = Learner.Config(
        schedule=ConstantSchedule.Config(peak=0.01), clip_norm=None, **values
    ).build()
    key = jax.random.key(1)
    state = learner.init(model, initialize(model, key), initialize_variables(model, key))
    new, report = jax.jit(lambda s, b: learner.step(model, s, b, key))(state, batch())
    return state, new, report


def gradient(model: Any) -> Any:
    key = jax.random.key(1)
    produce = Autodiff.Config().build()
    params = initialize(model, key)
    return jax.jit(lambda p: produce(model, p, {}, {}, batch(), key, jnp.int32(0)))(
        params
    ).gradients


def weighed(coefficient: float) -> Any:
    return model(losses={"balance": LoadBalanceLoss.Config(coefficient=coefficient)})


@pytest.mark.sweep
def test_the_balance_loss_reaches_loss_and_router() -> None:
    reports = {each: step(weighed(each))[2] for each in (0.0, 0.1, 0.2)}
    even = reports[0.1].losses[BALANCE] / 0.1
    assert even > 1  # 1 is perfect balance, which random routing is not
    for coefficient, report in reports.items():
        np.testing.assert_allclose(report.losses[BALANCE], coefficient * even, rtol=1e-5)
        expected = reports[0.0].loss + coefficient * even
        np.testing.assert_allclose(report.loss, expected, rtol=1e-6)
    none, some, more = (gradient(weighed(each)) for each in (0.0, 0.1, 0.2))
    pull = some[ROUTER] - none[ROUTER]
    assert np.abs(pull).max() > 1e-5
    assert (np.abs(pull).max(axis=(1, 2)) > 1e-6).all(), "in each of the layers"
    np.testing.assert_allclose(more[ROUTER] - none[ROUTER], 2 * pull, atol=1e-6)


def test_summaries_and_z_loss_are_reported() -> None:
    losses = {"z": RouterZLoss.Config()}
    _, _, report = step(model(losses=losses, dispatch=Capacity.Config(factor=0.5)))
    layer = "decoder/stack/layer/feed_forward"
    assert report.losses[f"{layer}/losses/z/router_z"] > 0
    assert BALANCE not in report.losses
    assert 0 < report.summaries[f"{layer}/dropped"].value() < 1
    assert report.summaries[f"{layer}/busiest_expert"].value() >= 1


@pytest.mark.parametrize("gradients", [Autodiff.Config(), Accumulate.Config(microbatches=2)])
def test_the_bias_is_a_variable_that_training_moves(gradients: Any) -> None:
    router = TopKRouter.Config(bias=LossFreeBias.Config(rate=1e-3))
    before, after, report = step(model(router=router), gradients=gradients)
    assert report.finite
    assert BIAS not in before.params
    assert before.variables[BIAS].shape == (2, 4)
    np.testing.assert_array_equal(before.variables[BIAS], 0)
    assert (np.abs(after.variables[BIAS]).max(axis=1) > 0).all()


def test_every_expert_and_router_trains() -> None:
    before, after, _ = step(model())
    for path, value in before.params.items():
        assert not np.array_equal(value, after.params[path]), path
