"""A feature is a new file: each of these is defined here and runs in every experiment."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from dovetail.config import (
    REQUIRED,
    ConfigError,
    ConfigOf,
    apply_modifier,
    config_for,
    from_text,
    identity,
    replace,
    select,
    to_text,
    wraps,
)
from dovetail.experiments import experiments
from dovetail.layers import BaseFeedForward, Linear, NoPositions, TokenContext, TokenMap
from dovetail.layers.positions.rotary import RotaryEmbedding
from dovetail.learner import Elementwise, Ema
from dovetail.module import ConstantInitializer, Module, functional, parameter, parameter_specs
from dovetail.parallel import MeshLayout
from dovetail.run import InitFromRun, train_run
from dovetail.runtime import RunFolder, abstract_state
from dovetail.trainer import Hooks
from dovetail.trainer.initialization import initial_state
from tests.experiments.tiny_models import every_tiny_model


class SquaredReLU(Module):
    """A feed-forward of another shape."""

    class Config(Module.Config["SquaredReLU"]):
        width: int = REQUIRED
        hidden: int = REQUIRED

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        shape = (config.width, config.hidden)
        self.up = parameter(shape, ("embed", "mlp"), fan_in=(0,), fan_out=(1,))
        self.down = parameter(shape[::-1], ("mlp", "embed"), fan_in=(0,), fan_out=(1,))

    def __call__(self, x: jax.Array) -> jax.Array:
        return jnp.square(jax.nn.relu(x @ self.up)) @ self.down


class Drifting(Module):
    """A position encoding that adds a learned drift to keys."""

    class Config(Module.Config["Drifting"]):
        head_width: int = REQUIRED

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self.drift = parameter(
            (config.head_width,), (None,), ConstantInitializer.Config(), decays=False
        )

    def __call__(self, query, key, context):
        return query, key + context.positions_BS[..., None, None] * self.drift.astype(key.dtype)


def sign_of_gradient(strength: float = 1.0) -> optax.GradientTransformation:
    """An optimizer of three lines."""
    return optax.stateless(
        lambda updates, _: jax.tree.map(lambda u: strength * jnp.sign(u), updates)
    )


class Scaled(Module):
    """An adapter around any linear map: a learned scale of its output."""

    class Config(Module.Config["Scaled"]):
        in_features: int = REQUIRED
        out_features: int = REQUIRED
        in_axis: str | None = None
        out_axis: str | None = None
        base: ConfigOf[TokenMap] = wraps()

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        names = ("in_features", "out_features", "in_axis", "out_axis")
        sizes = {name: getattr(config, name) for name in names}
        self.base = config.base.clone(**sizes).build()
        ones = ConstantInitializer.Config(value=1.0)
        self.adapter = parameter((config.out_features,), (config.out_axis,), ones, decays=False)

    def __call__(self, x: jax.Array) -> jax.Array:
        return self.base(x) * self.adapter


def positions_of(config):
    """Returns the kind of position encoding that a model has in its attention."""
    return RotaryEmbedding if len(select(config, RotaryEmbedding)) else NoPositions


FEATURES = {
    "feed-forward": lambda config: replace(config, BaseFeedForward, SquaredReLU.Config()),
    "positions": lambda config: replace(config, positions_of(config), Drifting.Config()),
    "optimizer": lambda config: config.clone().set(
        learner=config.learner.clone(
            optimizer=Elementwise.Config(transform=config_for(sign_of_gradient, strength=0.5))
        )
    ),
    "adapter": lambda config: replace(config, Linear, Scaled.Config()),
}


@pytest.mark.parametrize("feature", FEATURES)
@every_tiny_model("tiny-lm")
def test_a_feature_of_this_file_trains_in_every_experiment(name, feature, tmp_path):
    config = experiments()[name].tiny()
    config.set(steps=2, writers={}, evaluators={}, mesh=MeshLayout.Config(data=-1, fsdp=1))
    outcome = FEATURES[feature](config).build().train(tmp_path)
    assert outcome.step == 2
    assert np.isfinite([loss for _, loss in outcome.losses]).all()


@pytest.mark.sweep
def test_experts_with_adapters_train(tmp_path):
    """Two features that do not know of each other: every linear map of every expert is adapted."""
    config = replace(
        apply_modifier(experiments()["tiny-lm"].tiny(), "moe:num_experts=4,top_k=2"),
        Linear,
        Scaled.Config(),
    )
    trainer, _, outcome = trained(config, tmp_path)
    adapter = parameter_specs(trainer.model)["decoder/stack/layer/feed_forward/gate/adapter"]
    assert adapter.shape == (2, 4, 64)
    assert np.isfinite([loss for _, loss in outcome.losses]).all()


def trained(config, folder):
    """Trains a small config for two steps; returns the trainer, what it said, and the outcome."""
    config.set(steps=2, writers={}, evaluators={}, mesh=MeshLayout.Config(data=-1, fsdp=1))
    said = []
    trainer = config.build()
    return trainer, said, train_run(trainer, RunFolder(folder), {}, hooks=Hooks(said.append))


def logits(trainer, state):
    """Runs a model on a few tokens."""
    tokens = jnp.arange(12).reshape(2, 6)
    context = TokenContext(jnp.tile(jnp.arange(6), (2, 1)), jnp.ones((2, 6), jnp.int32))
    return functional(trainer.model, state.params, (tokens, context), method="all_logits")[0]


def test_a_plain_checkpoint_restores_into_the_wrapped_model(tmp_path):
    """The adapter keeps every path of what it wraps, and at its start it changes nothing."""
    plain, _, _ = trained(experiments()["tiny-lm"].tiny(), tmp_path / "plain")
    program = plain.program()
    like = abstract_state(program.state_shapes, program.state_shardings)
    step, saved = plain.checkpointer.restore(like)
    assert step == 2
    config = FEATURES["adapter"](experiments()["tiny-lm"].tiny())
    config.set(initialization=InitFromRun.Config(run=str(tmp_path / "plain")), seed=1)
    config.learner.set(ema=Ema.Config())
    wrapped, said, outcome = trained(config, tmp_path / "wrapped")
    before = initial_state(wrapped.program(), wrapped.initialization, said.append)
    np.testing.assert_array_equal(logits(plain, saved), logits(wrapped, before))
    assert before.step == 0
    for path, average in before.ema.items():
        np.testing.assert_array_equal(average, before.params[path], path)
    added = len(before.params) - len(saved.params)
    assert added > 0
    taken = f"loaded {len(saved.params)} parameters; {added} keep their initialization"
    assert f"initialized from step 2 of {tmp_path / 'plain'}: {taken}" in said
    assert outcome.step == 2
    assert np.isfinite([loss for _, loss in outcome.losses]).all()


def test_a_run_to_start_from_must_be_there(tmp_path):
    config = experiments()["tiny-lm"].tiny()
    config.initialization = InitFromRun.Config(run=str(tmp_path / "nowhere"))
    with pytest.raises(
        ConfigError, match=r"initialization.run: the run folder .*nowhere does not exist"
    ):
        config.build().initialization.arrays({}, print)
    (tmp_path / "nowhere").mkdir()
    with pytest.raises(ConfigError, match=r"nowhere is not a run folder"):
        config.build().initialization.check()


def test_where_a_run_starts_from_is_part_of_its_identity():
    config = experiments()["tiny-lm"].tiny()
    other = config.clone(initialization=InitFromRun.Config(run="runs/tiny-lm"))
    assert identity(config) != identity(other)
    assert from_text(to_text(other)) == other
