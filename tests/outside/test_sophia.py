"""Sophia-G (arXiv 2305.14342), as a package of its own: no file of Dovetail knows of it.

Every k steps, a second backward pass with labels sampled from the model's own predictions estimates
the diagonal of the Gauss-Newton matrix. It reaches the optimizer as an extra.
"""

import itertools
from dataclasses import replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from dovetail.config import (
    Component,
    ConfigError,
    ConfigOf,
    config_for,
    from_text,
    register_function,
    to_text,
)
from dovetail.experiments import find_experiment
from dovetail.layers import TokenContext
from dovetail.learner import Autodiff, Elementwise
from dovetail.learner.gradients import GradientComputation, GradientResult
from dovetail.module import functional
from dovetail.trainer import NonFiniteError
from tests.outside.steps import EIGHT, ONE, bits, take_steps


class GaussNewtonBartlett(Component):
    """Gradients, and every few steps an estimate of the Gauss-Newton diagonal."""

    class Config(Component.Config["GaussNewtonBartlett"]):
        every: int = 10
        inner: ConfigOf[GradientComputation] = Autodiff.Config()

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self.every, self.inner = config.every, config.inner.build()

    def __call__(
        self,
        model: Any,
        trainable: Any,
        frozen: Any,
        variables: Any,
        batch: Any,
        key: jax.Array,
        step: jax.Array,
    ) -> GradientResult:
        result = self.inner(model, trainable, frozen, variables, batch, key, step)

        def estimate() -> dict[str, jax.Array]:
            sample_key, gradient_key = jax.random.split(jax.random.fold_in(key, 1))
            inputs = (batch.tokens, TokenContext(batch.positions, batch.segment_ids))
            logits_BSV, _ = functional(
                model,
                {**frozen, **trainable},
                inputs,
                variables=variables,
                key=gradient_key,
                method="all_logits",
                losses="discard",
            )
            targets_BS = jax.random.categorical(sample_key, logits_BSV.astype(jnp.float32))
            sampled = replace(batch, targets=targets_BS.astype(batch.targets.dtype))
            second = self.inner(model, trainable, frozen, variables, sampled, gradient_key, step)
            # The gradient is of the mean over tokens; the estimate is tokens times its square.
            tokens = batch.loss_weights.sum()
            return {p: self.scaled(tokens * g * g, step) for p, g in second.gradients.items()}

        def nothing() -> dict[str, jax.Array]:
            return {path: jnp.zeros_like(value) for path, value in result.gradients.items()}

        is_new = step % self.every == 0
        diagonal = jax.lax.cond(is_new, estimate, nothing)
        return replace(result, extras={"diagonal": diagonal, "diagonal_is_new": is_new})

    def scaled(self, diagonal: jax.Array, step: jax.Array) -> jax.Array:
        """Returns the estimate; a test overrides it."""
        return diagonal

    def stage_axes(self) -> tuple[str, ...]:
        return self.inner.stage_axes()


class SophiaState(NamedTuple):
    """The moving averages of gradient and diagonal."""

    mu: Any
    diagonal: Any


def scale_by_sophia(
    b1: float = 0.965, b2: float = 0.99, rho: float = 0.05
) -> optax.GradientTransformationExtraArgs:
    """Momentum over curvature, clipped to 1 in each element."""

    def init(params: Any) -> SophiaState:
        zeros = jax.tree.map(jnp.zeros_like, params)
        return SophiaState(zeros, jax.tree.map(jnp.zeros_like, params))

    def update(
        updates: Any,
        state: SophiaState,
        params: Any = None,
        *,
        diagonal: Any,
        diagonal_is_new: jax.Array,
        **_: Any,
    ) -> tuple[Any, SophiaState]:
        mu = jax.tree.map(lambda m, g: b1 * m + (1 - b1) * g, state.mu, updates)
        kept = jax.tree.map(
            lambda h, new: jnp.where(diagonal_is_new, b2 * h + (1 - b2) * new, h),
            state.diagonal,
            diagonal,
        )
        directions = jax.tree.map(
            lambda m, h: jnp.clip(m / jnp.maximum(rho * h, 1e-15), -1.0, 1.0), mu, kept
        )
        return directions, SophiaState(mu, kept)

    return optax.GradientTransformationExtraArgs(init, update)


register_function(f"{__name__}:scale_by_sophia")
SOPHIA = {
    "optimizer": Elementwise.Config(
        transform=config_for(scale_by_sophia), extras=("diagonal", "diagonal_is_new")
    ),
    "gradients": GaussNewtonBartlett.Config(every=2),
}


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
