"""Frozen parameters: whole ones, and single layers of a stack."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dovetail.config import ConfigError
from dovetail.learner import Adafactor, AdamW, Ema, Muon, Sgd
from tests.learner.tiny import LAYERS, Net, make_batch, make_learner, start, take_steps


def changed_layers(before, after, path: str) -> list[bool]:
    return [
        not np.array_equal(before.params[path][i], after.params[path][i]) for i in range(LAYERS)
    ]


@pytest.mark.parametrize("optimizer", [AdamW.Config(), Adafactor.Config(), Muon.Config()])
def test_some_layers_of_a_stack_can_be_frozen(optimizer) -> None:
    model, batch = Net.Config().build(), make_batch()
    learner = make_learner(
        frozen=("layer/0/*", "layer/2/up"), weight_decay=0.1, optimizer=optimizer
    )
    before = start(learner, model)
    after, _ = take_steps(learner, model, [batch] * 2, before)
    assert changed_layers(before, after, "layer/mix") == [False, True, True]
    assert changed_layers(before, after, "layer/up") == [False, True, False]
    assert not np.array_equal(before.params["head"], after.params["head"])


def test_a_frozen_layer_counts_neither_in_the_norm_nor_for_the_others() -> None:
    model, batch = Net.Config().build(), make_batch()
    before = start(make_learner(), model)

    def run(frozen: tuple[str, ...]):
        return take_steps(make_learner(optimizer=Sgd.Config(), frozen=frozen), model, [batch], None)

    everything, (report,) = run(())
    part, (part_report,) = run(("layer/1/*",))
    assert part_report.gradient_norm < report.gradient_norm
    for path in before.params:
        kept = [0, 2] if path.startswith("layer/") else slice(None)
        np.testing.assert_allclose(
            part.params[path][np.array(kept) if isinstance(kept, list) else kept],
            everything.params[path][np.array(kept) if isinstance(kept, list) else kept],
            rtol=1e-6,
        )


def test_what_is_wholly_frozen_has_no_state_and_no_gradient() -> None:
    model, batch = Net.Config().build(), make_batch()
    learner = make_learner(frozen=("layer/*/mix", "embed"), ema=Ema.Config())
    before = start(learner, model)
    assert set(before.optimizer.mu) == {"head", "layer/down", "layer/scale", "layer/up"}
    assert set(before.ema) == set(before.optimizer.mu)
    trained, fixed = learner._trainable(model).partition(before.params)
    produced = jax.eval_shape(
        lambda t, f: learner.gradients(
            model, t, f, before.variables, batch, jax.random.key(0), before.step
        ),
        trained,
        fixed,
    )
    assert set(produced.gradients) == set(trained)
    after, _ = take_steps(learner, model, [batch], before)
    np.testing.assert_array_equal(before.params["layer/mix"], after.params["layer/mix"])


def test_the_path_of_a_stack_freezes_all_its_layers() -> None:
    model = Net.Config().build()
    by_stack = start(make_learner(frozen=("layer/up",)), model)
    by_layers = start(make_learner(frozen=("layer/*/up",)), model)
    assert set(by_stack.optimizer.mu) == set(by_layers.optimizer.mu) == {
        "embed", "head", "layer/down", "layer/mix", "layer/scale",
    }  # fmt: skip


def test_a_frozen_layers_nan_does_not_get_through() -> None:
    model = Net.Config().build()
    learner = make_learner(frozen=("layer/1/*",))
    trained = learner._trainable(model)
    gradients = {path: jnp.full(spec.shape, jnp.nan) for path, spec in trained.specs.items()}
    assert jnp.isfinite(trained.mask_frozen(gradients)["layer/up"][1]).all()


@pytest.mark.parametrize(
    ("frozen", "message"),
    [
        (("layer/1/upp",), r"'layer/1/upp' matches no parameter\. Did you mean 'layer/1/up'"),
        (("embed", "layer/7/*"), r"'layer/7/\*' matches no parameter"),
        (("*",), "freezes every parameter: none is left to train"),
    ],
)
def test_patterns_that_cannot_be_meant_are_refused(frozen, message) -> None:
    with pytest.raises(ConfigError, match=message):
        start(make_learner(frozen=frozen), Net.Config().build())


def test_of_the_patterns_that_match_the_last_decides() -> None:
    model, batch = Net.Config().build(), make_batch()
    learner = make_learner(frozen=("*", "!layer/*/up", "!head", "layer/1/*"))
    before = start(learner, model)
    assert set(before.optimizer.mu) == {"head", "layer/up"}
    after, _ = take_steps(learner, model, [batch] * 2, before)
    assert changed_layers(before, after, "layer/up") == [True, False, True]
    assert changed_layers(before, after, "layer/mix") == [False] * LAYERS
    assert not np.array_equal(before.params["head"], after.params["head"])


def test_an_exception_must_match_too() -> None:
    with pytest.raises(ConfigError, match=r"the pattern '!layer/\*/upp' matches no parameter"):
        start(make_learner(frozen=("*", "!layer/*/upp")), Net.Config().build())
