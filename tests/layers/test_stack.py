"""Stacks: a scan equals its layers in order, and remat changes only what is saved."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dovetail.config import REQUIRED, Config, ConfigError, ConfigOf, select, wraps
from dovetail.layers import (
    Decoder,
    Layer,
    Pattern,
    Stack,
    TokenContext,
    in_stages,
    layers_of,
    rearrange,
)
from dovetail.layers.residual import SandwichNorm
from dovetail.layers.stack.stages import split_at_longest
from dovetail.module import Module, functional
from dovetail.parallel import SaveAll, SaveDots, SaveNamed, SaveNothing
from tests.layers.cases import (
    BATCH,
    HIDDEN,
    SEQUENCE,
    VOCAB,
    WIDTH,
    alternating,
    block,
    mixing,
    random_params,
    tokens,
)
from tests.layers.references import rms_norm

LAYERS = 2
TOKENS = BATCH * SEQUENCE
POLICIES = {
    "nothing": SaveNothing.Config(),
    "dots": SaveDots.Config(),
    "tags": SaveNamed.Config(names=("attention_output", "feed_forward_gate")),
}
# How many numbers of each tagged value one token has.
TAGS = {
    "layer_input": 0,  # every policy keeps it, tagged or not
    "attention_query": WIDTH,
    "attention_key": WIDTH // 2,
    "attention_value": WIDTH // 2,
    "attention_output": WIDTH,
    "feed_forward_gate": HIDDEN,
    "feed_forward_up": HIDDEN,
    "feed_forward_output": WIDTH,
}


def stack(**fields: Any) -> Stack.Config:
    return Stack.Config(width=WIDTH, num_layers=LAYERS, layer=block()).set(**fields)


def run(config: Config[Any], params: Any, *inputs: Any) -> jax.Array:
    module = config.build()
    return jax.jit(lambda *arguments: functional(module, *arguments)[0])(params, inputs)


def loss(config: Config[Any], params: Any, inputs: Any) -> jax.Array:
    return jnp.sum(jnp.sin(functional(config.build(), params, inputs)[0]))


@functools.cache
def loss_and_gradients(**fields: Any) -> Any:
    config = stack(**{name: POLICIES.get(value, value) for name, value in fields.items()})
    params = random_params(config.build())
    # The inputs are arguments: constants would be folded, in straight code more than in a loop.
    return jax.jit(jax.value_and_grad(functools.partial(loss, config)))(params, mixing())


def kept_values(remat: Config[Any], layer: Config[Any] | None = None) -> int:
    """Counts the numbers that the backward pass of a stack is given."""
    config = stack(remat=remat, layer=layer or block())
    params = random_params(config.build())
    differentiate = functools.partial(jax.vjp, functools.partial(loss, config))
    pullback = jax.eval_shape(lambda *arguments: differentiate(*arguments)[1], params, mixing())
    return sum(leaf.size for leaf in jax.tree.leaves(pullback))


def test_a_stack_applies_its_layers_in_order() -> None:
    config = stack(layer=alternating(), num_layers=2)
    params, (x, context) = random_params(config.build()), mixing()
    together = run(config, params, x, context)
    for index in range(2):
        for place, layer in enumerate(alternating().layers):
            prefix = f"layer/layers/{place}/"
            own = {p.removeprefix(prefix): v[index] for p, v in params.items() if prefix in p}
            x = run(layer.clone(width=WIDTH), own, x, context)
    np.testing.assert_allclose(together, x, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(("policy", "unroll"), [("tags", 1), ("nothing", LAYERS)])
def test_remat_gives_equal_gradients(policy: str, unroll: int) -> None:
    value, gradients = loss_and_gradients()
    other_value, other_gradients = loss_and_gradients(remat=policy, unroll=unroll)
    np.testing.assert_allclose(value, other_value, rtol=1e-6)
    for path, gradient in gradients.items():
        np.testing.assert_allclose(gradient, other_gradients[path], rtol=1e-5, atol=1e-5)


def test_remat_saves_fewer_activations() -> None:
    kept = {name: kept_values(config) for name, config in POLICIES.items()}
    assert kept["tags"] - kept["nothing"] == LAYERS * TOKENS * (WIDTH + HIDDEN)
    assert kept["nothing"] < kept["dots"] < kept_values(SaveAll.Config())


@pytest.mark.parametrize("name", TAGS)
def test_every_tag_can_be_saved(name: str) -> None:
    # The output of the feed-forward is of use to the backward pass only where a norm follows it.
    layer = block().set(feed_forward_residual=SandwichNorm.Config())
    kept = kept_values(SaveNamed.Config(names=(name,)), layer)
    assert kept - kept_values(SaveNothing.Config(), layer) == LAYERS * TOKENS * TAGS[name]


@pytest.mark.parametrize("field", ["num_layers", "unroll"])
def test_a_stack_has_layers(field: str) -> None:
    with pytest.raises(ConfigError) as caught:
        stack(**{field: 0}).build()
    assert str(caught.value) == f"{field}: expected 1 or more, got 0."


def test_a_pattern_has_layers() -> None:
    with pytest.raises(ConfigError) as caught:
        Stack.Config(width=WIDTH, num_layers=1, layer=Pattern.Config(layers=())).build()
    assert str(caught.value) == "layer.layers: expected at least one layer, got none."


def test_every_nth_layer_is_changed_and_the_rest_stays_in_loops() -> None:
    plain = stack(num_layers=7, remat=SaveDots.Config())
    other = block().set(feed_forward_residual=SandwichNorm.Config())
    changed = rearrange(plain, lambda layer: other, every=3)
    kinds = [layer == other for layer in layers_of(changed)]
    assert kinds == [False, False, True, False, False, True, False]
    loops = list(select(changed, Stack))
    assert [loop.num_layers for loop in loops] == [2, 1]
    assert all(loop.remat == SaveDots.Config() for loop in loops)
    twice = rearrange(changed, lambda layer: layer, every=2)
    assert all(loop.remat == SaveDots.Config() for loop in select(twice, Stack))
    assert rearrange(plain, lambda layer: layer).clone(width=WIDTH) == plain
    assert layers_of(rearrange(alternating(), lambda layer: other, every=2))[1] == other


@pytest.mark.parametrize("every", [0, 3, -1])
def test_there_must_be_an_nth_layer(every: int) -> None:
    with pytest.raises(ConfigError, match=f"every: expected 1 to 2 .*, got {every}"):
        rearrange(stack(), lambda layer: layer, every=every)


class WithTotal(Module):
    """A layer that carries the sum of all residual streams beside the residual stream."""

    class Config(Module.Config["WithTotal"]):
        width: int = REQUIRED
        layer: ConfigOf[Layer] = wraps()

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self.layer = config.layer.build(width=config.width)

    def __call__(self, carry: Any, context: TokenContext) -> Any:
        x_BSE = self.layer(carry["x"], context)
        return {"x": x_BSE, "total": carry["total"] + x_BSE}


@pytest.mark.parametrize("remat", [SaveAll.Config(), *POLICIES.values()])
def test_a_carry_may_be_any_pytree(remat: Config[Any]) -> None:
    inside = Pattern.Config(layers=(WithTotal.Config(layer=block()),))
    config = stack(layer=inside, remat=remat)
    plain = stack(layer=Pattern.Config(layers=(block(),)))
    params, (x, context) = random_params(config.build()), mixing()
    result = run(config, params, {"x": x, "total": jnp.zeros_like(x)}, context)
    first = {path: value[:1] for path, value in params.items()}
    one = run(plain.clone(num_layers=1), first, x, context)
    both = run(plain, params, x, context)
    np.testing.assert_allclose(result["x"], both, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(result["total"], one + both, rtol=1e-5, atol=1e-5)

    def total(params: Any) -> jax.Array:
        start = {"x": x, "total": jnp.zeros_like(x)}
        return functional(config.build(), params, (start, context))[0]["total"].sum()

    gradients = jax.jit(jax.grad(total))(params)
    assert all((np.abs(gradient).max() > 0) for gradient in gradients.values())


class Reversed(Pattern):
    """A pattern that applies its layers in another order."""

    def __call__(self, x: Any, context: TokenContext) -> Any:
        for layer in reversed(self.layers):
            x = layer(x, context)
        return x


def test_a_subclass_of_a_pattern_stays_one_layer() -> None:
    reversed_layers = Reversed.Config(layers=(block(), alternating()))
    assert layers_of(stack(layer=reversed_layers)) == [reversed_layers] * LAYERS
    module = reversed_layers.clone(width=WIDTH, layers=(stack(), block())).build()
    assert split_at_longest(module) == ([], module, [])
    assert in_stages(module.config, 2) == module.config


class Doubled(Module):
    """Two residual streams from one."""

    class Config(Module.Config["Doubled"]):
        width: int = REQUIRED

    def __call__(self, x_BSE: jax.Array, context: TokenContext) -> Any:
        return (x_BSE, x_BSE**2)


class Both(Module):
    """A layer on two residual streams."""

    class Config(Module.Config["Both"]):
        width: int = REQUIRED

    def __call__(self, x: Any, context: TokenContext) -> Any:
        first, second = x
        return (second, first + second)


class Summed(Module):
    """One residual stream from two."""

    class Config(Module.Config["Summed"]):
        width: int = REQUIRED

    def __call__(self, x: Any, context: TokenContext) -> jax.Array:
        return x[0] + 2 * x[1]


def test_what_enters_and_leaves_the_stack_are_children_of_the_decoder() -> None:
    config = Decoder.Config(
        width=WIDTH,
        vocab_size=VOCAB,
        stack=Stack.Config(num_layers=2, layer=Both.Config()),
        stack_input=Doubled.Config(),
        stack_output=Summed.Config(),
    )
    module = config.build()
    params = random_params(module)
    assert set(params) == {"embedding/weight", "norm/scale"}
    result, _ = functional(module, params, (tokens(), mixing()[1]))
    x = params["embedding/weight"][tokens()]
    first, second = x + x**2, x + 2 * x**2
    expected = rms_norm(first + 2 * second, params["norm/scale"], config.norm.epsilon)
    np.testing.assert_allclose(result, expected, rtol=1e-5, atol=1e-5)
