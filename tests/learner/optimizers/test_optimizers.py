"""Every optimizer: right on stacked layers, and the same as Optax where nothing is stacked."""

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from dovetail import learner as subpackage
from dovetail.config import (
    Component,
    ConfigError,
    config_for,
    from_text,
    register_function,
    to_text,
)
from dovetail.learner import (
    Adafactor,
    AdamW,
    Elementwise,
    Lion,
    Muon,
    OptaxOptimizer,
    PerTensor,
    Sgd,
    chain,
)
from dovetail.learner.optimizers.mup import MupOptimizer
from dovetail.module import ConstantInitializer, ParameterSpec
from tests.learner.tiny import Net, make_batch, make_learner, start, take_steps

FILL = ConstantInitializer.Config().build()


def every_optimizer() -> list[Any]:
    """A config of every exported optimizer, with a few choices of their options."""
    kinds = {
        k for k in vars(subpackage).values() if isinstance(k, type) and issubclass(k, Component)
    }
    named = {k for k in kinds if hasattr(k, "transformation")}
    named -= {Elementwise, OptaxOptimizer, PerTensor}
    lamb = config_for(
        chain, transforms=[config_for(optax.scale_by_adam), config_for(optax.scale_by_trust_ratio)]
    )
    configs = [
        Elementwise.Config(transform=config_for(optax.scale_by_adam, b1=0.8)),
        PerTensor.Config(transform=lamb),
        OptaxOptimizer.Config(transform=config_for(optax.adamw, learning_rate=1.0)),
        Adafactor.Config(min_dim_size_to_factor=4, momentum=0.9),
        Sgd.Config(momentum=0.0),
        Muon.Config(others=Lion.Config()),
        MupOptimizer.Config(base_width=4),
    ]
    return [kind.Config() for kind in sorted(named, key=lambda kind: kind.__name__)] + configs


def names(config: Any) -> str:
    return type(config).__qualname__.split(".")[0]


def specs_of(stacked: bool) -> dict[str, ParameterSpec]:
    """Matrices, a vector, a lookup and a doubly stacked matrix, with and without layers."""
    matrix = {"fan_in": (0,), "fan_out": (1,)}
    single = {
        "square": ParameterSpec((8, 8), ("embed", "heads"), FILL, **matrix),
        "oblong": ParameterSpec((8, 6), ("embed", "mlp"), FILL, **matrix),
        "scale": ParameterSpec((8,), ("embed",), FILL),
        "lookup": ParameterSpec((8, 8), ("vocab", "embed"), FILL),
    }
    expert = ParameterSpec((5, 7), ("embed", "mlp"), FILL, **matrix)
    if stacked:
        specs = {path: spec.stack(3, "layers", 0) for path, spec in single.items()}
        return specs | {"moe/expert": expert.stack(2, "expert", 1).stack(3, "layers", 0)}
    specs = {f"{i}/{path}": spec for i in range(3) for path, spec in single.items()}
    return specs | {f"{i}/moe/{j}/expert": expert for i in range(3) for j in range(2)}


def separate(arrays: dict[str, Any], stacked: dict[str, ParameterSpec]) -> dict[str, Any]:
    """Takes stacked arrays apart, into those of `specs_of(False)`."""
    found = {}
    for path, spec in stacked.items():
        layers = arrays[path].reshape(-1, *spec.layer_shape)
        found |= dict(zip(spec.layer_paths(path), layers, strict=True))
    return found


def noise(specs: dict[str, ParameterSpec], seed: int) -> dict[str, jax.Array]:
    keys = jax.random.split(jax.random.key(seed), len(specs))
    # Each layer's numbers have a size of their own, so that mixing layers up would show.
    sizes = jnp.array([0.1, 1.0, 10.0])
    return {
        path: jax.random.normal(key, spec.shape) * sizes.reshape(3, *(1,) * (len(spec.shape) - 1))
        for key, (path, spec) in zip(keys, specs.items(), strict=True)
    }


@pytest.mark.parametrize("config", every_optimizer(), ids=names)
def test_a_stack_is_updated_like_its_layers_one_by_one(config) -> None:
    optimizer = config.build()
    stacked, single = specs_of(True), specs_of(False)
    params = noise(stacked, 0)
    together, apart = (optimizer.transformation(specs) for specs in (stacked, single))
    state, states = together.init(params), apart.init(separate(params, stacked))
    for seed in (1, 2, 3):
        gradient = noise(stacked, seed)
        direction, state = jax.jit(together.update)(gradient, state, params)
        directions, states = jax.jit(apart.update)(
            separate(gradient, stacked), states, separate(params, stacked)
        )
        for path, value in separate(direction, stacked).items():
            np.testing.assert_allclose(value, directions[path], rtol=2e-4, atol=1e-5, err_msg=path)


@pytest.mark.parametrize("config", every_optimizer(), ids=names)
def test_every_optimizer_trains_and_survives_as_text(config) -> None:
    batch = make_batch()
    learner = make_learner(optimizer=config, clip_norm=1.0)
    state, reports = take_steps(learner, Net.Config().build(), [batch] * 8)
    assert state.step == 8
    assert reports[-1].loss < reports[0].loss
    assert from_text(to_text(config)) == config


MATRIX = {"fan_in": (0,), "fan_out": (1,)}
PLAIN = {
    "matrix": ParameterSpec((6, 8), ("embed", "mlp"), FILL, **MATRIX),
    "scale": ParameterSpec((8,), ("embed",), FILL),
}
RATE = 0.01
REFERENCES = [
    (AdamW.Config(b2=0.99), optax.adam(RATE, b2=0.99)),
    (AdamW.Config(mu_dtype="bfloat16"), optax.adam(RATE, b2=0.95, mu_dtype="bfloat16")),
    (Lion.Config(), optax.lion(RATE, weight_decay=0.0)),
    (Sgd.Config(momentum=0.8), optax.sgd(RATE, momentum=0.8)),
    (Sgd.Config(nesterov=True), optax.sgd(RATE, momentum=0.9, nesterov=True)),
    (Adafactor.Config(min_dim_size_to_factor=4), optax.adafactor(RATE, min_dim_size_to_factor=4)),
    (
        Adafactor.Config(momentum=0.9, multiply_by_parameter_scale=False, clipping_threshold=None),
        optax.adafactor(
            RATE, momentum=0.9, multiply_by_parameter_scale=False, clipping_threshold=None
        ),
    ),
    (
        Muon.Config(nesterov=False),
        optax.contrib.muon(RATE, nesterov=False, consistent_rms=0.2, adam_b2=0.95),
    ),
]


@pytest.mark.parametrize(("config", "reference"), REFERENCES, ids=[names(c) for c, _ in REFERENCES])
def test_without_stacks_it_is_what_optax_does(config, reference) -> None:
    ours = config.build().transformation(PLAIN)
    keys = jax.random.split(jax.random.key(0), 8)
    params = {p: jax.random.normal(keys[i], s.shape) for i, (p, s) in enumerate(PLAIN.items())}
    state, reference_state = ours.init(params), reference.init(params)
    for key in keys[2:5]:
        gradient = {p: jax.random.normal(key, s.shape) for p, s in PLAIN.items()}
        direction, state = ours.update(gradient, state, params)
        update, reference_state = reference.update(gradient, reference_state, params)
        for path in params:
            np.testing.assert_allclose(-RATE * direction[path], update[path], rtol=1e-4, atol=1e-8)
        params = optax.apply_updates(params, update)


def test_muon_moves_as_far_as_adamw_and_leaves_lookups_and_vocabularies_to_it() -> None:
    specs = {
        "matrix": ParameterSpec((64, 16), ("embed", "mlp"), FILL, **MATRIX),
        "embed": ParameterSpec((64, 16), ("vocab", "embed"), FILL),
        "head": ParameterSpec((16, 64), ("embed", "vocab"), FILL, **MATRIX),
    }
    gradient = {p: jax.random.normal(jax.random.key(1), s.shape) for p, s in specs.items()}
    transformation = Muon.Config().build().transformation(specs)
    state = transformation.init(gradient)
    assert set(state["muon"]) == {"matrix"}
    assert set(state["others"].mu) == {"embed", "head"}
    direction, _ = transformation.update(gradient, state, gradient)
    size = jnp.sqrt(jnp.mean(direction["matrix"] ** 2))
    assert 0.1 < size < 0.3  # 0.2, as far as five iterations orthogonalise
    everything = Muon.Config(excluded_axes=()).build().transformation(specs).init(gradient)
    assert set(everything["muon"]) == {"matrix", "head"}


LOW = [kind(mu_dtype="bfloat16") for kind in (AdamW.Config, Lion.Config, Sgd.Config, Muon.Config)]


@pytest.mark.parametrize("config", LOW, ids=names)
def test_the_first_moment_can_have_a_smaller_dtype_and_stays_so(config) -> None:
    state, _ = take_steps(make_learner(optimizer=config), Net.Config().build(), [make_batch()] * 2)
    kinds = {leaf.dtype.name for leaf in jax.tree.leaves(state.optimizer)}
    assert "bfloat16" in kinds


def signs_of(strength: float = 1.0) -> optax.GradientTransformation:
    """A user's own transformation."""
    return optax.stateless(
        lambda updates, _: jax.tree.map(lambda g: strength * jnp.sign(g), updates)
    )


class UsersOwn(Component):
    """A user's own optimizer, which uses the specs."""

    def transformation(self, specs: Mapping[str, ParameterSpec]) -> optax.GradientTransformation:
        return optax.stateless(
            lambda updates, _: {p: u * specs[p].stacked for p, u in updates.items()}
        )


def test_a_users_own_function_and_class_are_optimizers_too() -> None:
    register_function(f"{__name__}:signs_of")
    model, batch = Net.Config().build(), make_batch()
    by_function = Elementwise.Config(transform=config_for(signs_of, strength=2.0))
    first = take_steps(make_learner(optimizer=by_function), model, [])[0]
    state, _ = take_steps(make_learner(optimizer=by_function), model, [batch])
    moved = jnp.abs(state.params["head"] - first.params["head"])
    np.testing.assert_allclose(moved, 0.02, rtol=1e-4)
    state, _ = take_steps(make_learner(optimizer=UsersOwn.Config()), model, [batch])
    np.testing.assert_array_equal(state.params["head"], first.params["head"])
    assert not np.array_equal(state.params["layer/up"], first.params["layer/up"])


def test_an_optimizer_with_its_own_learning_rate_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"optax:adamw has its own learning rate.*scale_by_adam"):
        Elementwise.Config(transform=config_for(optax.adamw, learning_rate=0.1)).build()


def test_what_is_no_optimizer_is_refused_by_its_type() -> None:
    with pytest.raises(ConfigError, match=r"optimizer: expected a config that builds a Optimizer"):
        make_learner(optimizer=subpackage.CosineSchedule.Config())


def a_users_chain(momentum: float = 0.9) -> optax.GradientTransformation:
    """A complete optimizer of a user: what it returns is added to the parameters."""
    return optax.chain(optax.clip(0.5), optax.trace(momentum), optax.scale(-1.0))


register_function(f"{__name__}:a_users_chain")
COMPLETE = [
    (
        config_for(optax.adamw, learning_rate=1.0, b1=0.8, weight_decay=0.1),
        optax.adamw(RATE, b1=0.8, weight_decay=0.1),
    ),
    (config_for(optax.lion, learning_rate=1.0), optax.lion(RATE)),
    (config_for(optax.sgd, learning_rate=1.0, momentum=0.9), optax.sgd(RATE, momentum=0.9)),
    (config_for(a_users_chain), optax.chain(a_users_chain(), optax.scale(RATE))),
]


@pytest.mark.parametrize(
    ("config", "reference"), COMPLETE, ids=[type(c).display_name() for c, _ in COMPLETE]
)
def test_a_complete_optax_optimizer_trains_as_in_optaxs_own_loop(config, reference) -> None:
    learner = make_learner(optimizer=config, schedule=subpackage.ConstantSchedule.Config(peak=RATE))
    model, batches = Net.Config().build(), [make_batch(seed=seed) for seed in range(5)]
    state, _ = take_steps(learner, model, batches)
    first = start(learner, model)
    params, optimizer = first.params, reference.init(first.params)
    gradient = jax.jit(
        lambda params, batch: (
            learner.gradients(
                model, params, {}, first.variables, batch, jax.random.key(0), first.step
            ).gradients
        )
    )
    for batch in batches:
        updates, optimizer = reference.update(gradient(params, batch), optimizer, params)
        params = optax.apply_updates(params, updates)
    for path, value in params.items():
        np.testing.assert_allclose(state.params[path], value, rtol=1e-6, atol=1e-6, err_msg=path)
    axes = learner.state_axes(model)
    assert jax.tree.structure(axes.optimizer) == jax.tree.structure(state.optimizer)
    text = subpackage.Learner.Config(optimizer=config, total_steps=3)
    assert from_text(to_text(text)) == text


def test_a_bare_transformation_of_the_gradients_sign_is_refused_as_it_would_ascend() -> None:
    with pytest.raises(
        ConfigError, match=r"optax:scale_by_adam gives a direction.*Elementwise\.Config"
    ):
        make_learner(optimizer=config_for(optax.scale_by_adam))


def a_number():
    """No optimizer, and its annotation does not say so."""
    return 3


def test_a_function_that_builds_no_optimizer_is_refused() -> None:
    register_function(f"{__name__}:a_number")
    with pytest.raises(ConfigError, match=r"a_number builds a int, which is neither an Optimizer"):
        make_learner(optimizer=config_for(a_number))
