"""Extras of a gradient computation reach the optimizer by name, behind the same guard."""

from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from dovetail.config import Component, ConfigError, config_for, register_function
from dovetail.learner import (
    Accumulate,
    AdamW,
    Autodiff,
    Elementwise,
    Muon,
    ParameterGroup,
    PerTensor,
    Sgd,
)
from dovetail.learner.optimizers.mup import MupOptimizer
from tests.learner.test_non_finite import bits
from tests.learner.tiny import Net, make_batch, make_learner, start, take_steps


class Curvature(Component):
    """Gradients, and as extras a constant for each element, and a scalar."""

    class Config(Component.Config["Curvature"]):
        value: float = 2.0
        from_step: int = 0

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self.value, self.from_step = config.value, config.from_step
        self.inner = Autodiff.Config().build()

    def __call__(
        self,
        model: Any,
        trainable: Any,
        frozen: Any,
        variables: Any,
        batch: Any,
        key: jax.Array,
        step: jax.Array,
    ) -> Any:
        result = self.inner(model, trainable, frozen, variables, batch, key, step)
        value = jnp.where(step >= self.from_step, self.value, 1.0)
        curvature = {path: jnp.full_like(leaf, value) for path, leaf in trainable.items()}
        return replace(result, extras={"curvature": curvature, "shift": jnp.float32(1.0)})

    def stage_axes(self) -> tuple[str, ...]:
        return ()


def divide(power: float = 1.0) -> optax.GradientTransformationExtraArgs:
    """Divides the gradient by the curvature; the shift is added to it first."""

    def update(updates, state, params=None, *, curvature, shift, **_):
        directions = jax.tree.map(lambda g, c: g / (c + shift) ** power, updates, curvature)
        return directions, state

    return optax.GradientTransformationExtraArgs(lambda params: optax.EmptyState(), update)


register_function(f"{__name__}:divide")
BOTH = ("curvature", "shift")
DIVIDED = Elementwise.Config(transform=config_for(divide), extras=BOTH)


def updates(**values: Any) -> dict[str, np.ndarray]:
    learner, model = make_learner(**values), Net.Config().build()
    after, _ = take_steps(learner, model, [make_batch()])
    before = start(learner, model)
    return {path: np.asarray(after.params[path] - before.params[path]) for path in after.params}


@pytest.mark.parametrize(
    "optimizer",
    [
        DIVIDED,
        PerTensor.Config(transform=config_for(divide), extras=BOTH),
        MupOptimizer.Config(base_width=8, optimizer=DIVIDED),
    ],
    ids=["Elementwise", "PerTensor", "MupOptimizer"],
)
def test_an_optimizer_gets_the_extras_that_it_asks_for(optimizer) -> None:
    plain = updates(optimizer=Sgd.Config(momentum=0.0))
    found = updates(optimizer=optimizer, gradients=Curvature.Config(value=3.0))
    for path in ("embed", "head", "layer/mix", "layer/scale"):
        np.testing.assert_allclose(found[path], plain[path] / 4.0, rtol=1e-3, atol=6e-8)


def test_extras_are_divided_among_groups_and_the_others_of_muon() -> None:
    groups = (ParameterGroup.Config(pattern="layer/*", optimizer=AdamW.Config()),)
    gradients = Curvature.Config(value=3.0)
    plain = updates(optimizer=Sgd.Config(momentum=0.0))
    grouped = updates(optimizer=DIVIDED, gradients=gradients, groups=groups)
    muon = updates(optimizer=Muon.Config(others=DIVIDED), gradients=gradients)
    for found in (grouped, muon):
        np.testing.assert_allclose(found["head"], plain["head"] / 4.0, rtol=1e-3, atol=6e-8)


def test_a_non_finite_extra_changes_nothing() -> None:
    model, batch = Net.Config().build(), make_batch()
    gradients = Curvature.Config(value=float("nan"), from_step=2)
    learner = make_learner(optimizer=DIVIDED, gradients=gradients)
    before, _ = take_steps(learner, model, [batch] * 2)
    halted, (report,) = take_steps(learner, model, [batch], before)
    assert not report.finite
    assert jnp.isfinite(report.loss)
    assert report.non_finite_parameter == -1
    assert {name: bool(value) for name, value in report.finite_extras.items()} == {
        "curvature": False,
        "shift": True,
    }
    assert halted.halted_at == 2
    assert bits(replace(halted, halted_at=before.halted_at)) == bits(before)


def test_a_frozen_layers_extra_does_not_count() -> None:
    class Poisoned(Curvature):
        def __call__(self, *arguments: Any) -> Any:
            result = super().__call__(*arguments)
            curvature = result.extras["curvature"]
            spoiled = {p: c.at[1].set(jnp.nan) for p, c in curvature.items() if "layer/" in p}
            return replace(result, extras=result.extras | {"curvature": curvature | spoiled})

    learner = make_learner(
        optimizer=DIVIDED, gradients=Poisoned.Config(), frozen=("layer/1/*",), clip_norm=None
    )
    _, (report,) = take_steps(learner, Net.Config().build(), [make_batch()])
    assert report.finite


def test_extras_that_nobody_asks_for_are_dropped() -> None:
    _, (report,) = take_steps(
        make_learner(gradients=Curvature.Config(value=float("nan"))),
        Net.Config().build(),
        [make_batch()],
    )
    assert report.finite
    assert report.finite_extras == {}


@pytest.mark.parametrize("as_group", [False, True])
def test_a_gradient_computation_without_them_is_refused_by_name(as_group) -> None:
    gradients = Accumulate.Config(microbatches=2)
    if as_group:
        groups = (ParameterGroup.Config(pattern="head", optimizer=DIVIDED),)
        learner = make_learner(groups=groups, gradients=gradients)
    else:
        learner = make_learner(optimizer=DIVIDED, gradients=gradients)
    message = (
        r"Elementwise needs the extra 'curvature', which learner\.gradients, Accumulate, does not "
        r"compute \(it has: none\)"
    )
    with pytest.raises(ConfigError, match=message):
        take_steps(learner, Net.Config().build(), [make_batch()])
