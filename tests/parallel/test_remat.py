"""Remat: every policy gives the same gradients, and each saves what it says."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dovetail.config import Config, ConfigError, from_text, to_text
from dovetail.parallel import OffloadNamed, SaveAll, SaveDots, SaveNamed, SaveNothing, tag
from dovetail.parallel.remat import named_remat

LAYERS, ROWS, WIDTH = 4, 6, 8
POLICIES = {
    "all": SaveAll.Config(),
    "nothing": SaveNothing.Config(),
    "dots": SaveDots.Config(),
    "tags": SaveNamed.Config(names=("waved",)),
    "offloaded": OffloadNamed.Config(names=("waved",)),
}


def layer(x: jax.Array, weight: jax.Array) -> tuple[jax.Array, None]:
    waved = tag(jnp.sin(x @ weight), "waved")
    return x + jnp.tanh(jnp.exp(waved) @ weight.T), None


def loss(config: Config[Any], weights: jax.Array, x: jax.Array, unroll: int = 1) -> jax.Array:
    body = config.build().wrap(layer, in_loop=unroll < LAYERS)
    return jnp.sum(jax.lax.scan(body, x, weights, unroll=unroll)[0] ** 2)


@pytest.fixture
def weights() -> jax.Array:
    return 0.3 * jax.random.normal(jax.random.key(1), (LAYERS, WIDTH, WIDTH))


@pytest.fixture
def x() -> jax.Array:
    return jax.random.normal(jax.random.key(2), (ROWS, WIDTH))


def saved_values(config: Config[Any], weights: jax.Array, x: jax.Array) -> int:
    """Counts the numbers that the backward pass is given, apart from the weights."""
    pullback = jax.eval_shape(lambda w: jax.vjp(lambda w: loss(config, w, x), w)[1], weights)
    sizes = [leaf.size for leaf in jax.tree.leaves(pullback)]
    return sum(sizes) - weights.size


@pytest.mark.parametrize("unroll", [1, LAYERS])
@pytest.mark.parametrize("name", POLICIES)
def test_policies_give_equal_gradients(
    name: str, unroll: int, weights: jax.Array, x: jax.Array
) -> None:
    plain = jax.jit(jax.grad(lambda w: loss(SaveAll.Config(), w, x)))(weights)
    other = jax.jit(jax.grad(lambda w: loss(POLICIES[name], w, x, unroll)))(weights)
    np.testing.assert_allclose(other, plain, rtol=1e-5, atol=1e-5)


def test_policies_save_what_they_say(weights: jax.Array, x: jax.Array) -> None:
    saved = {name: saved_values(config, weights, x) for name, config in POLICIES.items()}
    one_value = LAYERS * ROWS * WIDTH
    assert saved["tags"] == saved["offloaded"] == saved["nothing"] + one_value
    assert saved["dots"] == saved["nothing"] + 2 * one_value
    assert saved["all"] > saved["dots"]


def test_in_straight_code_the_compiler_may_not_merge_the_recomputation(
    weights: jax.Array, x: jax.Array
) -> None:
    def has_barrier(config: Config[Any], unroll: int) -> bool:
        gradient = jax.jit(jax.grad(lambda w: loss(config, w, x, unroll)))
        return "optimization_barrier" in gradient.lower(weights).as_text()

    assert has_barrier(SaveNothing.Config(), unroll=LAYERS)
    assert not has_barrier(SaveNothing.Config(), unroll=1)
    assert not has_barrier(SaveAll.Config(), unroll=LAYERS)


def test_unused_tags_are_reported(weights: jax.Array, x: jax.Array) -> None:
    config = SaveNamed.Config(names=("weaved", "wave"))
    with pytest.warns(UserWarning, match="names: no layer tags any of weaved, wave") as caught:
        jax.eval_shape(lambda w: loss(config, w, x), weights)
    assert str(caught[0].message) == (
        "names: no layer tags any of weaved, wave, so everything is recomputed. Tags here: waved."
    )


def test_one_used_tag_is_enough(weights: jax.Array, x: jax.Array) -> None:
    saved = saved_values(SaveNamed.Config(names=("attention_output", "waved")), weights, x)
    assert saved == saved_values(POLICIES["tags"], weights, x)


@pytest.mark.parametrize("name", POLICIES)
def test_policies_survive_text(name: str) -> None:
    assert from_text(to_text(POLICIES[name])) == POLICIES[name]


def test_offloaded_activations_are_fetched(weights: jax.Array, x: jax.Array) -> None:
    def moves(config: Config[Any]) -> tuple[int, int]:
        program = str(jax.make_jaxpr(jax.grad(lambda w: loss(config, w, x)))(weights))
        return program.count("(MemorySpace.Host,)"), program.count("(MemorySpace.Device,)")

    assert moves(POLICIES["offloaded"]) == (1, 1)
    assert moves(POLICIES["tags"]) == (0, 0)


def test_a_tag_is_saved_or_offloaded() -> None:
    with pytest.raises(ConfigError) as caught:
        OffloadNamed.Config(names=("a", "b"), save=("b", "c")).build()
    assert str(caught.value) == (
        "save: b cannot be both saved on the device and offloaded. Name each tag in `save` or in "
        "`names`."
    )


def test_unused_offload_tags_are_reported(weights: jax.Array, x: jax.Array) -> None:
    config = OffloadNamed.Config(names=("weaved",), save=("waved",))
    with pytest.warns(
        UserWarning, match="no layer tags any of weaved, so nothing is offloaded. Tags"
    ):
        jax.eval_shape(lambda w: loss(config, w, x), weights)


def test_a_policy_around_another_sees_the_same_tags(weights: jax.Array, x: jax.Array) -> None:
    policy = POLICIES["tags"].build()

    def inner(x: jax.Array, weight: jax.Array) -> tuple[jax.Array, None]:
        return policy.wrap(layer, in_loop=True)(x, weight)

    jax.eval_shape(policy.wrap(inner, in_loop=True), x, weights[0])  # a warning is an error


@pytest.mark.parametrize(
    ("save", "policy"),
    [
        (("nothing",), SaveNothing.Config()),
        (("dots",), SaveDots.Config()),
        (("attention",), SaveNamed.Config(names=("attention_output",))),
        (("everything",), SaveAll.Config()),
        (("waved", "other"), SaveNamed.Config(names=("waved", "other"))),
    ],
)
def test_named_policies(save: tuple[str, ...], policy: Config[Any]) -> None:
    assert named_remat(save) == policy


@pytest.mark.parametrize("save", [(), ("dots", "waved")])
def test_a_named_policy_stands_alone(save: tuple[str, ...]) -> None:
    with pytest.raises(ConfigError, match="save: expected one of nothing, dots, attention, every"):
        named_remat(save)
