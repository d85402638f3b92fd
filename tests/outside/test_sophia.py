"""Sophia-G of an outside package: it trains, and a bad estimate of curvature changes nothing."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dovetail.config import ConfigError, from_text, to_text
from dovetail.experiments import find_experiment
from dovetail.trainer import NonFiniteError
from tests.outside.sophia import SOPHIA, GaussNewtonBartlett
from tests.outside.steps import EIGHT, ONE, bits, resumed_and_at_once, take_steps


@pytest.fixture(scope="module")
def on_one_device():
    return take_steps(ONE, steps=6, peak=3e-3, **SOPHIA)


def test_the_loss_falls_and_the_diagonal_is_estimated_every_second_step(on_one_device) -> None:
    assert on_one_device.losses[-1] < on_one_device.losses[0] - 0.1
    kept = [state.optimizer.diagonal for state in on_one_device.states]
    weight = "decoder/stack/layer/feed_forward/up/weight"
    changed = [
        not np.array_equal(before[weight], after[weight])
        for before, after in itertools.pairwise(kept)
    ]
    assert changed == [False, True, False, True, False]
    assert (np.asarray(kept[0][weight]) >= 0).all()
    assert np.asarray(kept[0][weight]).any()


def test_a_mesh_of_eight_gives_the_same_losses(on_one_device) -> None:
    sharded = take_steps(EIGHT, steps=6, peak=3e-3, **SOPHIA)
    np.testing.assert_allclose(sharded.losses, on_one_device.losses, rtol=1e-3)
    weight = "decoder/stack/layer/feed_forward/up/weight"
    state = sharded.states[-1]
    assert state.optimizer.diagonal[weight].sharding == state.params[weight].sharding
    assert not state.params[weight].sharding.is_fully_replicated


@pytest.mark.slow
def test_a_run_resumes_with_its_diagonal(tmp_path) -> None:
    resumed, at_once = resumed_and_at_once("sophia:every=2", tmp_path)
    assert resumed == at_once
    assert len(set(at_once)) == 6


class Spoiled(GaussNewtonBartlett):
    """An estimator whose second estimate is not finite."""

    def scaled(self, diagonal: jax.Array, step: jax.Array) -> jax.Array:
        return jnp.where(step >= 2, jnp.inf, diagonal)


@pytest.mark.parametrize("mesh", [ONE, EIGHT], ids=["one", "eight"])
def test_a_diagonal_that_is_not_finite_changes_nothing(mesh) -> None:
    found = take_steps(mesh, steps=4, peak=3e-3, **SOPHIA | {"gradients": Spoiled.Config(every=2)})
    assert [bool(report.finite) for report in found.reports[:3]] == [True, True, False]
    assert np.isfinite(found.losses).all()
    assert not found.reports[2].finite_extras["diagonal"]
    assert found.states[2].halted_at == 2
    assert bits(found.states[1]) == bits(found.states[2]) == bits(found.states[3])


def test_a_run_that_it_ends_names_the_extra(tmp_path) -> None:
    config = find_experiment("tiny-lm").tiny()
    config.set(steps=4, evaluators={}, writers={})
    config.learner.set(**SOPHIA | {"gradients": Spoiled.Config(every=2)})
    with pytest.raises(NonFiniteError, match=r"Step 3: diagonal \(an extra of the gradient comp"):
        config.build().train(tmp_path)


def test_it_survives_as_text_and_is_refused_without_its_gradients() -> None:
    for config in SOPHIA.values():
        assert from_text(to_text(config)) == config
    with pytest.raises(ConfigError, match=r"needs the extra 'diagonal'.*Autodiff, does not"):
        take_steps(ONE, steps=1, peak=3e-3, optimizer=SOPHIA["optimizer"])
