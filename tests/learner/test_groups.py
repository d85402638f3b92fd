"""Parameter groups: optimizer, rate, decay and freezing by path, down to layers of a stack."""

import jax
import numpy as np
import pytest

from dovetail.config import ConfigError, from_text, to_text
from dovetail.learner import Adafactor, AdamW, Ema, Learner, Lion, Muon, ParameterGroup, Sgd
from dovetail.parallel import HostMemory
from tests.learner.tiny import KEY, Net, initial, make_batch, make_learner, start, take_steps


def group(pattern: str, **values) -> ParameterGroup.Config:
    return ParameterGroup.Config(pattern=pattern, **values)


def updates(steps: int = 1, **values):
    """What some steps of plain SGD, unless told otherwise, do to each parameter."""
    learner = make_learner(**({"optimizer": Sgd.Config(momentum=0.0)} | values))
    model = Net.Config().build()
    after, _ = take_steps(learner, model, [make_batch()] * steps)
    before = start(learner, model)
    return {path: np.asarray(after.params[path] - before.params[path]) for path in after.params}


def test_a_rate_multiplies_the_update_of_its_parameters_only() -> None:
    plain, found = updates(), updates(groups=(group("head", rate=3.0), group("layer/*", rate=0.5)))
    for path, value in plain.items():
        factor = {"head": 3.0, "embed": 1.0}.get(path, 0.5)
        np.testing.assert_allclose(found[path], factor * value, rtol=1e-3, atol=1e-7, err_msg=path)


def test_layers_of_a_stack_can_have_their_own_rate_and_decay() -> None:
    """Layer-wise rates: every layer of a stacked array has its own."""
    groups = (
        group("layer/0/*", rate=0.0),
        group("layer/1/*", rate=0.5, weight_decay=0.4),
    )
    plain, found = updates(), updates(groups=groups, weight_decay=0.2)
    first, decays = initial(Net)[0], {"layer/up": 1.0, "layer/scale": 0.0}
    for path, decay in decays.items():
        for layer, (rate, own) in enumerate([(0.0, 0.4), (0.5, 0.4), (1.0, 0.2)]):
            expected = rate * (plain[path][layer] - 0.01 * decay * own * first[path][layer])
            np.testing.assert_allclose(found[path][layer], expected, rtol=1e-3, atol=1e-7)


def test_a_group_without_decay_of_its_own_has_the_learners() -> None:
    found = updates(groups=(group("head", rate=1.0),), weight_decay=0.2)
    for path, value in updates(weight_decay=0.2).items():
        np.testing.assert_allclose(found[path], value, rtol=1e-5, atol=1e-8)
    none = updates(groups=(group("head", weight_decay=0.0),), weight_decay=0.2)
    np.testing.assert_allclose(none["head"], updates()["head"], rtol=1e-4, atol=1e-8)


def test_optimizers_differ_by_path_and_each_is_itself() -> None:
    groups = (group("head", optimizer=Lion.Config()), group("layer/*", optimizer=AdamW.Config()))
    found = updates(steps=3, groups=groups)
    # The gradients depend on all parameters, so only the first step can be compared.
    one = updates(groups=groups)
    np.testing.assert_allclose(np.abs(one["head"]), 0.01, rtol=1e-4)
    np.testing.assert_allclose(one["embed"], updates()["embed"], rtol=1e-4, atol=1e-8)
    by_adam = updates(optimizer=AdamW.Config())
    np.testing.assert_allclose(one["layer/up"], by_adam["layer/up"], rtol=1e-4, atol=1e-7)
    assert all(np.isfinite(value).all() for value in found.values())


@pytest.mark.parametrize("optimizer", [Adafactor.Config(min_dim_size_to_factor=4), Muon.Config()])
def test_the_state_of_groups_has_axes_and_memory(optimizer) -> None:
    learner = make_learner(
        groups=(group("layer/*", optimizer=optimizer), group("head", frozen=True)),
        ema=Ema.Config(),
        optimizer_memory=HostMemory.Config(),
    )
    model = Net.Config().build()
    state = jax.eval_shape(lambda p, v: learner.init(model, p, v), *initial(Net))
    axes = learner.state_axes(model)
    assert jax.tree.structure(state) == jax.tree.structure(axes)
    jax.tree.map(lambda leaf, names: leaf.ndim == len(names) or pytest.fail(names), state, axes)
    assert set(state.optimizer) == {"group_0", "others"}
    mu = axes.optimizer["others"].mu
    assert mu == {"embed": ("vocab", "embed")}
    assert mu["embed"].memory_kind == "pinned_host"


def test_a_frozen_group_is_frozen_down_to_single_layers() -> None:
    groups = (group("layer/1/*", frozen=True), group("embed", frozen=True))
    found = updates(groups=groups, frozen=("layer/2/up",))
    assert not found["embed"].any()
    assert [bool(layer.any()) for layer in found["layer/mix"]] == [True, False, True]
    assert [bool(layer.any()) for layer in found["layer/up"]] == [True, False, False]
    assert found["head"].any()


def test_rates_and_decays_of_groups_are_arguments_of_the_step() -> None:
    model, batch = Net.Config().build(), make_batch()

    def text(rate: float, decay: float | None) -> str:
        groups = (group("head", rate=rate, weight_decay=decay), group("layer/0/*", rate=rate))
        learner = make_learner(groups=groups)
        step = jax.jit(lambda s, h: learner.step(model, s, batch, KEY, h))
        return step.lower(start(learner, model), learner.hyperparameters()).as_text()

    assert text(1.0, None) == text(0.25, 0.3)


@pytest.mark.parametrize(
    ("groups", "message"),
    [
        (
            (group("heda", rate=2.0),),
            r"learner\.groups\.0: the pattern 'heda' matches no parameter\. Did you mean 'head'",
        ),
        ((group("*"), group("head")), r"learner\.groups\.1: .*'head' matches only parameters that"),
        (
            (group("layer/0/*", optimizer=Lion.Config()),),
            r"'layer/0/\*' gives an optimizer to some layers of the stack layer/\w+",
        ),
        ((group("*", frozen=True),), r"learner\.groups freezes every parameter"),
    ],
)
def test_groups_that_cannot_be_meant_are_refused(groups, message) -> None:
    with pytest.raises(ConfigError, match=message):
        start(make_learner(groups=groups), Net.Config().build())


def test_negative_numbers_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"groups\.0\.rate: expected 0 or more, got -1\.0"):
        make_learner(groups=(group("head", rate=-1.0),))


def test_groups_survive_as_text() -> None:
    config = Learner.Config(groups=(group("head", optimizer=Lion.Config(), rate=0.5),))
    assert from_text(to_text(config)) == config
