"""Rate, decay and number of steps are arguments of the step, so a sweep compiles once."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dovetail.config import Component, ConfigError
from dovetail.learner import BaseSchedule, CosineSchedule
from dovetail.learner.schedules import SCHEDULES, named_schedule
from tests.learner.tiny import KEY, Net, make_batch, make_learner, start, take_steps


def sweep_learner(**values):
    schedule = CosineSchedule.Config(peak=values.pop("peak"))
    return make_learner(schedule=schedule, **values)


FIRST = {"peak": 0.01, "weight_decay": 0.0, "total_steps": 10, "clip_norm": 1.0}
SECOND = {"peak": 0.03, "weight_decay": 0.2, "total_steps": 25, "clip_norm": 0.5}


def test_one_compiled_step_serves_other_values_and_equals_its_own() -> None:
    model, batch = Net.Config().build(), make_batch()
    first, second = sweep_learner(**FIRST), sweep_learner(**SECOND)
    traces = []

    @jax.jit
    def step(state, hyperparameters):
        traces.append(hyperparameters)
        return first.step(model, state, batch, KEY, hyperparameters)

    for learner in (first, second):
        state = start(learner, model)
        for _ in range(3):
            state, report = step(state, learner.hyperparameters())
        own, (*_, expected) = take_steps(learner, model, [batch] * 3)
        np.testing.assert_allclose(report.learning_rate, expected.learning_rate, rtol=1e-6)
        for path, value in own.params.items():
            np.testing.assert_allclose(state.params[path], value, rtol=1e-5, atol=1e-7)
    assert len(traces) == 1


@pytest.mark.parametrize("name", sorted(SCHEDULES))
def test_every_schedule_shares_its_program_among_values(name: str) -> None:
    def text(peak: float, steps: int, warmup: int) -> str:
        config = named_schedule(name).set(peak=peak, warmup_steps=warmup)
        learner = make_learner(schedule=config, total_steps=steps, weight_decay=peak)
        model, batch = Net.Config().build(), make_batch()
        step = jax.jit(lambda s, h: learner.step(model, s, batch, KEY, h))
        return step.lower(start(learner, model), learner.hyperparameters()).as_text()

    assert text(0.01, 10, 0) == text(0.02, 30, 4)


class Triangle(BaseSchedule):
    """A user's own schedule; its numbers are traced without further code."""

    class Config(BaseSchedule.Config["Triangle"]):
        top: float = 0.1
        middle: int = 4

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self.top, self.middle = config.top, config.middle

    def __call__(self, step: jax.Array) -> jax.Array:
        return self.top * jnp.minimum(step + 1, 2 * self.middle - step) / self.middle


class Fixed(Component):
    """A schedule that is a plain function of the step."""

    class Config(Component.Config["Fixed"]):
        rate: float = 0.05

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self.rate = config.rate

    def __call__(self, step: jax.Array) -> jax.Array:
        return jnp.float32(self.rate if self.rate < 1 else 1.0)


class Branching(Triangle):
    """Branches on a number that is traced."""

    def __call__(self, step: jax.Array) -> jax.Array:
        return step * (1.0 if self.top > 0.5 else 0.5)


def test_a_users_schedule_is_traced_and_a_plain_function_of_the_step_is_constant() -> None:
    triangle, fixed = (
        make_learner(schedule=config) for config in (Triangle.Config(), Fixed.Config())
    )
    assert {name: float(value) for name, value in triangle.hyperparameters().schedule.items()} == {
        "middle": 4.0,
        "top": pytest.approx(0.1),
    }
    assert fixed.hyperparameters().schedule == {}
    _, (report,) = take_steps(fixed, Net.Config().build(), [make_batch()])
    np.testing.assert_allclose(report.learning_rate, 0.05)


def test_a_schedule_that_branches_on_its_numbers_is_told_how_not_to() -> None:
    learner, model = make_learner(schedule=Branching.Config()), Net.Config().build()
    step = jax.jit(lambda s, h: learner.step(model, s, make_batch(), KEY, h))
    with pytest.raises(ConfigError, match=r"Branching uses one of its numbers \(middle, top\)"):
        step.lower(start(learner, model), learner.hyperparameters())
