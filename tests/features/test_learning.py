"""Features of learning: what each sets, for every kind of model, and that it learns."""

from __future__ import annotations

import inspect

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dovetail.config import ConfigError, apply_modifier, from_text, select, to_text
from dovetail.features import features
from dovetail.layers import NextTokenLoss
from dovetail.learner import Accumulate, CosineSchedule, Ema, Lion, WarmupStableDecaySchedule
from dovetail.learner.optimizers.library import OPTIMIZERS, named_optimizer
from dovetail.learner.schedules import SCHEDULES, named_schedule
from dovetail.module import parameter_specs
from dovetail.module.tree import Tree
from tests.features.representatives import every_representative, tiny
from tests.learner.tiny import Net, make_batch, make_learner, take_steps


@every_representative
def test_each_applies(name: str) -> None:
    plain = tiny(name)
    assert isinstance(tiny(name, "optimizer:name=lion").learner.optimizer, Lion.Config)
    assert tiny(name, "optimizer:name=lion,peak=0.25").learner.schedule.peak == 0.25
    rate = tiny(name, "schedule:name=warmup-stable-decay").learner.schedule
    assert isinstance(rate, WarmupStableDecaySchedule.Config)
    assert rate.peak == plain.learner.schedule.peak
    assert tiny(name, "accumulate:steps=2").learner.gradients == Accumulate.Config(microbatches=2)
    assert tiny(name, "ema:decay=0.9").learner.ema == Ema.Config(decay=0.9)
    losses = select(tiny(name, "z-loss:weight=0.5"), NextTokenLoss)
    assert [loss.z_loss for loss in losses] == [0.5]
    for feature in ("optimizer", "schedule", "accumulate", "ema", "z-loss"):
        tiny(name, feature).build()


@every_representative
def test_what_a_pattern_names_is_not_trained(name: str) -> None:
    config = tiny(name, "freeze")
    trainer = config.build()
    frozen = {path for path in parameter_specs(trainer.model) if "decoder/embedding" in path}
    state = trainer.program().state_shapes
    kept = {
        getattr(key, "key", None)
        for place, _ in jax.tree_util.tree_leaves_with_path(state.optimizer)
        for key in place
    }
    assert frozen
    assert kept & state.params.keys() == state.params.keys() - frozen
    assert tiny(name, "freeze", 'freeze:patterns=("!*",)').learner.frozen[-1] == "!*"


@pytest.mark.parametrize(("feature", "dtype"), [("bf16", "bfloat16"), ("fp32", "float32")])
@every_representative
def test_the_model_computes_in_a_type(name: str, feature: str, dtype: str) -> None:
    model = tiny(name, feature).build().model
    assert {spec.dtype for spec in parameter_specs(model).values()} == {"float32"}
    found = {node.dtype for node in Tree(model).nodes()}
    assert dtype in found <= {dtype, "float32"}


@pytest.mark.parametrize(
    ("feature", "names"), [("optimizer", sorted(OPTIMIZERS)), ("schedule", sorted(SCHEDULES))]
)
def test_every_name_is_tried(feature: str, names: list[str]) -> None:
    assert sorted(trial["name"] for trial in features()[feature].trials) == names


@pytest.mark.parametrize("name", features())
def test_what_is_tried_are_arguments_of_the_feature(name: str) -> None:
    known = features()[name]
    taken = inspect.signature(known.apply).parameters
    assert known.trial == known.trials[0]
    assert all(argument in taken for trial in known.trials for argument in trial)


@pytest.mark.parametrize("name", sorted(OPTIMIZERS))
def test_every_named_optimizer_learns(name: str) -> None:
    config = named_optimizer(name)
    assert from_text(to_text(config)) == config
    rate = {"adadelta": 30.0, "adagrad": 0.1, "sgd": 0.05}.get(name, 0.01)
    learner = make_learner(optimizer=config, schedule=named_schedule("constant").set(peak=rate))
    _, reports = take_steps(learner, Net.Config().build(), [make_batch()] * 20)
    losses = [float(report.loss) for report in reports]
    assert np.isfinite(losses).all()
    assert losses[-1] < losses[0] - 0.05


@pytest.mark.parametrize("name", sorted(SCHEDULES))
def test_every_named_schedule_starts_below_its_peak_and_stays_there(name: str) -> None:
    config = named_schedule(name).set(peak=2.0, warmup_steps=4)
    assert from_text(to_text(config)) == config
    if "total_steps" in config.fields():
        config.total_steps = 20
    rates = np.array([config.build()(jnp.asarray(step)) for step in range(20)])
    assert rates[0] == pytest.approx(0.4)
    assert rates.max() == pytest.approx(2.0)


def test_a_linear_schedule_falls_all_the_way() -> None:
    rates = named_schedule("linear").set(peak=1.0, total_steps=10).build()
    np.testing.assert_allclose(rates(jnp.arange(10)), 1 - np.arange(10) / 10, atol=1e-6)


def test_a_schedule_takes_over_what_it_knows() -> None:
    config = tiny("tiny-lm")
    config.learner.schedule = CosineSchedule.Config(
        peak=0.5, warmup_fraction=0.25, end_fraction=0.125
    )
    rate = apply_modifier(config, "schedule:name=linear").learner.schedule
    assert rate == WarmupStableDecaySchedule.Config(
        peak=0.5, warmup_fraction=0.25, end_fraction=0.125, decay_fraction=1.0
    )


@pytest.mark.parametrize("kind", ["optimizer", "schedule"])
def test_an_unknown_name(kind: str) -> None:
    with pytest.raises(ConfigError, match=rf"There is no {kind} 'adamv'.*Known: "):
        tiny("tiny-lm", f"{kind}:name=adamv")
