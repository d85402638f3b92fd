"""One step: loss, clipping, decay, precision, and what is reported."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dovetail.config import ConfigError, from_text, to_text
from dovetail.learner import Autodiff, CosineSchedule, Learner, Sgd, main_loss
from dovetail.module import Module, functional, parameter, parameter_specs
from tests.learner.tiny import KEY, Net, make_batch, make_learner, start, take_steps


def plain_loss(model, params, variables, batch):
    """The loss, written again: the sum of total / weight."""
    _, outputs = functional(
        model, params, batch, variables=variables, key=KEY, training=True, losses="return"
    )
    return sum(loss.total / loss.weight for loss in outputs.losses.values())


def test_loss_and_update_are_those_of_plain_gradient_descent() -> None:
    model, batch = Net.Config().build(), make_batch()
    learner = make_learner(optimizer=Sgd.Config(momentum=0.0))
    before = start(learner, model)
    loss, gradient = jax.value_and_grad(lambda p: plain_loss(model, p, before.variables, batch))(
        before.params
    )
    after, (report,) = take_steps(learner, model, [batch], before)
    np.testing.assert_allclose(report.loss, loss, rtol=1e-6)
    for path, value in before.params.items():
        np.testing.assert_allclose(after.params[path], value - 0.01 * gradient[path], atol=1e-6)
    squares = sum(jnp.sum(g**2) for g in gradient.values())
    np.testing.assert_allclose(report.gradient_norm, jnp.sqrt(squares), rtol=1e-5)


def test_the_report_names_losses_summaries_and_the_weight_of_the_main_loss() -> None:
    batch = make_batch()
    state, (report,) = take_steps(make_learner(), Net.Config().build(), [batch])
    assert set(report.losses) == {"cross_entropy", "layer/balance"}
    np.testing.assert_allclose(sum(report.losses.values()), report.loss, rtol=1e-6)
    assert report.weight == batch["weights"].sum()
    assert report.summaries["largest_token"].value() == batch["tokens"].max()
    np.testing.assert_allclose(report.learning_rate, 0.01)
    assert bool(report.finite)
    assert report.non_finite_parameter == -1
    assert state.step == 1
    assert state.halted_at == -1
    assert state.variables["seen"] == batch["weights"].sum()


def test_the_main_loss_is_the_one_nearest_to_the_root() -> None:
    assert (
        main_loss(["decoder/layer/balance", "loss/cross_entropy", "loss/z"]) == "loss/cross_entropy"
    )


def test_clipping_scales_the_gradient_to_the_global_norm() -> None:
    model, batch = Net.Config().build(), make_batch()
    sgd = Sgd.Config(momentum=0.0)
    before = start(make_learner(optimizer=sgd), model)

    def change(clip_norm: float | None) -> tuple[float, float]:
        learner = make_learner(optimizer=sgd, clip_norm=clip_norm)
        after, (report,) = take_steps(learner, model, [batch], before)
        squares = [jnp.sum((after.params[p] - before.params[p]) ** 2) for p in before.params]
        return float(jnp.sqrt(sum(squares))) / 0.01, float(report.gradient_norm)

    unclipped, norm = change(None)
    assert unclipped == pytest.approx(norm, rel=1e-4)
    small = 0.25 * norm
    clipped, reported = change(small)
    assert clipped == pytest.approx(small, rel=1e-3)
    assert reported == pytest.approx(norm, rel=1e-5)  # before clipping
    assert change(10 * norm)[0] == pytest.approx(norm, rel=1e-4)  # a small gradient is left alone


def test_decay_applies_only_where_the_spec_says() -> None:
    model, batch = Net.Config().build(), make_batch()
    without, _ = take_steps(make_learner(), model, [batch])
    with_decay, _ = take_steps(make_learner(weight_decay=0.5), model, [batch])
    first = start(make_learner(), model).params
    for path, spec in parameter_specs(model).items():
        expected = 0.01 * 0.5 * first[path] if spec.decays else jnp.zeros(spec.shape)
        difference = without.params[path] - with_decay.params[path]
        np.testing.assert_allclose(difference, expected, atol=1e-6, err_msg=path)
    assert not parameter_specs(model)["layer/scale"].decays


def test_bf16_compute_keeps_gradients_state_and_updates_in_fp32() -> None:
    model, batch = Net.Config(dtype="bfloat16").build(), make_batch()
    learner = make_learner()
    state = start(learner, model)
    producer = Autodiff.Config().build()
    produced = jax.jit(lambda s: producer(model, s.params, {}, s.variables, batch, KEY, s.step))(
        state
    )
    hlo = jax.jit(lambda s: learner.step(model, s, batch, KEY)).lower(state).as_text()
    assert "bf16" in hlo
    assert {g.dtype for g in produced.gradients.values()} == {jnp.dtype("float32")}
    after, _ = take_steps(learner, model, [batch])
    kinds = {leaf.dtype.name for leaf in jax.tree.leaves(after)}
    assert kinds == {"float32", "int32"}
    # An update too small for bfloat16 (8 bits) still arrives.
    tiny, _ = take_steps(
        make_learner(schedule=CosineSchedule.Config(peak=1e-5, total_steps=9)), model, [batch]
    )
    assert not np.array_equal(tiny.params["layer/up"], state.params["layer/up"])


def test_randomness_depends_on_the_step_and_on_nothing_else() -> None:
    model, batch = Net.Config(noise=0.5).build(), make_batch()
    learner = make_learner(schedule=CosineSchedule.Config(peak=0.0, total_steps=9))
    _, (first, second) = take_steps(learner, model, [batch, batch])
    _, (again,) = take_steps(learner, model, [batch])
    assert first.loss != second.loss
    assert first.loss == again.loss


def test_a_model_without_a_loss_is_refused() -> None:
    class Silent(Module):
        def __init__(self, config: Module.Config) -> None:
            super().__init__(config)
            self.weight = parameter((2,), ("embed",))

        def __call__(self, x: jax.Array) -> jax.Array:
            return x * self.weight

    with pytest.raises(ValueError, match=r"Silent added no loss.*self\.add_loss"):
        take_steps(make_learner(), Silent.Config().build(), [jnp.ones(2)])


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"clip_norm": 0.0}, r"learner\.clip_norm must be above 0, got 0\.0"),
        ({"weight_decay": -1.0}, r"learner\.weight_decay must be 0 or more, got -1\.0"),
    ],
)
def test_impossible_values_are_refused(values, message) -> None:
    with pytest.raises(ConfigError, match=message):
        make_learner(**values)


def test_a_schedule_gets_the_number_of_steps_unless_it_has_its_own() -> None:
    assert Learner.Config(total_steps=50).build().schedule.total_steps == 50
    own = Learner.Config(total_steps=50, schedule=CosineSchedule.Config(total_steps=7)).build()
    assert own.schedule.total_steps == 7
    make_learner(total_steps=50)  # a constant schedule wants none
    with pytest.raises(ConfigError, match=r"schedule\.total_steps: not set.*learner's total_steps"):
        Learner.Config().build()


def test_the_config_survives_as_text() -> None:
    config = Learner.Config(total_steps=5, frozen=("a/*",), optimizer=Sgd.Config(momentum=0.5))
    assert from_text(to_text(config)) == config
