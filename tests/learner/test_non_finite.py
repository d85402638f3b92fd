"""A non-finite step is skipped, and so are all later ones."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dovetail.learner import Accumulate, Autodiff, Ema
from dovetail.module import Module, parameter
from tests.learner.tiny import Net, make_batch, make_learner, take_steps


def bits(state) -> list[bytes]:
    return [np.asarray(leaf).tobytes() for leaf in jax.tree.leaves(state)]


def poisoned(batch: dict[str, jax.Array]) -> dict[str, jax.Array]:
    return batch | {"weights": batch["weights"].at[0, 0].set(jnp.nan)}


@pytest.mark.parametrize("gradients", [Autodiff.Config(), Accumulate.Config(microbatches=2)])
def test_a_non_finite_step_and_all_later_ones_are_skipped(gradients) -> None:
    learner = make_learner(gradients=gradients, ema=Ema.Config(), weight_decay=0.1)
    model, good = Net.Config().build(), make_batch()
    before, _ = take_steps(learner, model, [good, good])
    halted, (report,) = take_steps(learner, model, [poisoned(good)], before)
    assert not report.finite
    assert report.non_finite_parameter == -1  # the loss itself
    assert halted.halted_at == 2
    unhalted = jax.tree.map(jnp.copy, halted)
    object.__setattr__(unhalted, "halted_at", before.halted_at)
    assert bits(unhalted) == bits(before)
    later, reports = take_steps(learner, model, [good, poisoned(good)], halted)
    assert reports[0].finite
    assert bits(later) == bits(halted)


class Roots(Module):
    """Its loss is finite at zero, while the gradient of `second` is not."""

    def __init__(self, config: Module.Config) -> None:
        super().__init__(config)
        self.first = parameter((3,), ("embed",))
        self.second = parameter((3,), ("embed",))
        self.third = parameter((3,), ("embed",))

    def __call__(self, x: jax.Array) -> None:
        value = self.first * x + jnp.sqrt(jnp.abs(self.second * 0)) + self.third
        self.add_loss("loss", value.sum(), 3)


@pytest.mark.parametrize(("frozen", "expected"), [((), 1), (("first",), 1), (("second",), -1)])
def test_a_non_finite_gradient_names_its_parameter(frozen, expected) -> None:
    learner = make_learner(frozen=frozen)
    state, (report,) = take_steps(learner, Roots.Config().build(), [jnp.ones(3)])
    assert jnp.isfinite(report.loss)
    assert report.non_finite_parameter == expected  # of first, second, third
    assert report.finite == (expected == -1)
    assert state.step == (1 if expected == -1 else 0)


def test_an_infinite_gradient_norm_is_not_finite() -> None:
    class Steep(Module):
        def __init__(self, config: Module.Config) -> None:
            super().__init__(config)
            self.weight = parameter((2,), ("embed",))

        def __call__(self, x: jax.Array) -> None:
            self.add_loss("loss", (self.weight * x).sum(), 1.0)

    state, (report,) = take_steps(make_learner(), Steep.Config().build(), [jnp.full(2, 1e30)])
    assert jnp.isinf(report.gradient_norm)
    assert report.non_finite_parameter == 0
    assert state.step == 0
