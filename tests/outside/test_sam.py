"""SAM, sharpness-aware minimization (arXiv 2010.01412), as a package of its own.

The gradient computation runs a second time at perturbed parameters, where the loss is higher. The
optimizer descends along that gradient, an extra, instead of the first.
"""

from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from dovetail.config import Component, ConfigOf, from_text, to_text
from dovetail.learner import AdamW, Autodiff, Optimizer, OptimizerWrapper, Sgd
from dovetail.learner.gradients import GradientComputation, GradientResult
from tests.outside.steps import EIGHT, ONE, bits, take_steps


class PerturbedGradients(Component):
    """Gradients, and those at parameters that are moved uphill by `radius`."""

    class Config(Component.Config["PerturbedGradients"]):
        radius: float = 0.05
        inner: ConfigOf[GradientComputation] = Autodiff.Config()

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self.radius, self.inner = config.radius, config.inner.build()

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
        first = self.inner(model, trainable, frozen, variables, batch, key, step)
        scale = self.radius_at(step) / (optax.tree.norm(first.gradients) + 1e-12)
        moved = {p: value + scale * first.gradients[p] for p, value in trainable.items()}
        second = self.inner(model, moved, frozen, variables, batch, key, step)
        return replace(first, extras={"perturbed": second.gradients})

    def radius_at(self, step: jax.Array) -> Any:
        """Returns the radius; a test overrides it."""
        return self.radius

    def stage_axes(self) -> tuple[str, ...]:
        return self.inner.stage_axes()


class Sam(OptimizerWrapper):
    """Gives the gradients at the perturbed parameters to any optimizer."""

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        self.optimizer: Optimizer = config.optimizer.build()

    def required_extras(self) -> tuple[str, ...]:
        return ("perturbed", *super().required_extras())

    def transformation(self, specs: Any) -> optax.GradientTransformation:
        inner = optax.with_extra_args_support(self.optimizer.transformation(specs))

        def update(updates: Any, state: Any, params: Any = None, *, perturbed: Any, **rest: Any):
            return inner.update(perturbed, state, params, **rest)

        return optax.GradientTransformationExtraArgs(inner.init, update)


SAM = {
    "optimizer": Sam.Config(optimizer=AdamW.Config()),
    "gradients": PerturbedGradients.Config(radius=0.02),
}


@pytest.fixture(scope="module")
def on_one_device():
    return take_steps(ONE, steps=6, peak=3e-3, **SAM)


def test_the_loss_falls_and_the_direction_is_that_of_the_second_gradient(on_one_device) -> None:
    assert on_one_device.losses[-1] < on_one_device.losses[0] - 0.1
    sgd = Sgd.Config(momentum=0.0)

    def one_step(**values: Any) -> Any:
        found = take_steps(ONE, steps=1, peak=0.1, clip_norm=None, **values)
        return found.states[0].params["decoder/embedding/weight"]

    around = Sam.Config(optimizer=sgd)
    plain = one_step(optimizer=sgd)
    still = one_step(optimizer=around, gradients=PerturbedGradients.Config(radius=0.0))
    moved = one_step(optimizer=around, gradients=SAM["gradients"])
    np.testing.assert_allclose(plain, still, rtol=1e-4, atol=1e-6)
    assert not np.allclose(plain, moved, rtol=1e-4, atol=1e-6)


def test_a_mesh_of_eight_gives_the_same_losses(on_one_device) -> None:
    sharded = take_steps(EIGHT, steps=6, peak=3e-3, **SAM)
    np.testing.assert_allclose(sharded.losses, on_one_device.losses, rtol=1e-3)


class Spoiled(PerturbedGradients):
    """Perturbs by an infinite radius from the third step on."""

    def radius_at(self, step: jax.Array) -> Any:
        return jnp.where(step >= 2, jnp.inf, self.radius)


@pytest.mark.parametrize("mesh", [ONE, EIGHT], ids=["one", "eight"])
def test_a_second_gradient_that_is_not_finite_changes_nothing(mesh) -> None:
    found = take_steps(mesh, steps=4, peak=3e-3, **SAM | {"gradients": Spoiled.Config()})
    assert [bool(report.finite) for report in found.reports[:3]] == [True, True, False]
    assert np.isfinite(found.losses).all()
    assert found.states[2].halted_at == 2
    assert bits(found.states[1]) == bits(found.states[2]) == bits(found.states[3])


def test_it_survives_as_text() -> None:
    for config in SAM.values():
        assert from_text(to_text(config)) == config
