"""The context of a layer: named inputs, and the promise that padding interrupts no sequence."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dovetail.config import REQUIRED, ConfigError, ConfigOf, replace
from dovetail.layers import Layer, Pattern, Stack, TokenContext
from dovetail.models.llama import llama
from dovetail.module import Module, functional, initialize, parameter
from dovetail.module.initializers import Normal
from dovetail.parallel import SaveNothing
from tests.layers.cases import BATCH, SEQUENCE, VOCAB, WIDTH, token_context, tokens, vectors


class Adds(Module):
    """A layer that adds a named input."""

    class Config(Module.Config["Adds"]):
        width: int = REQUIRED
        name: str = "more"

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self.name = config.name

    def __call__(self, x_BSE: jax.Array, context: TokenContext) -> jax.Array:
        return x_BSE + context.get(self.name)


class Gives(Module):
    """A layer that provides its input to the layer inside."""

    class Config(Module.Config["Gives"]):
        width: int = REQUIRED
        layer: ConfigOf[Layer] = Adds.Config()

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self.layer = config.layer.build(width=config.width)

    def __call__(self, x_BSE: jax.Array, context: TokenContext) -> Any:
        return self.layer(x_BSE, context.provide("more", x_BSE))


def test_a_layer_gets_what_a_layer_around_it_provides() -> None:
    config = Stack.Config(width=WIDTH, num_layers=3, layer=Gives.Config())
    result, _ = functional(config.build(), {}, (vectors(), token_context()))
    np.testing.assert_allclose(result, 8 * vectors(), rtol=1e-6)


def test_a_model_s_input_reaches_every_layer_of_a_remat_stack() -> None:
    stack = Stack.Config(num_layers=3, layer=Adds.Config(), remat=SaveNothing.Config())
    config = Pattern.Config(width=WIDTH, layers=(stack, Adds.Config()))
    context = token_context().provide("more", 2.0).provide("other", jnp.ones(3))

    def total(x: jax.Array, context: TokenContext) -> jax.Array:
        return functional(config.build(), {}, (x, context))[0].sum()

    value, gradient = jax.jit(jax.value_and_grad(total))(vectors(), context)
    np.testing.assert_allclose(value, vectors().sum() + 8 * vectors().size, rtol=1e-5)
    np.testing.assert_array_equal(gradient, jnp.ones_like(gradient))


def test_an_input_that_nobody_provides() -> None:
    config = Pattern.Config(width=WIDTH, layers=(Adds.Config(name="encoder"),))
    context = token_context().provide("tokens", tokens()).provide("images", 1.0)
    with pytest.raises(ConfigError) as caught:
        functional(config.build(), {}, (vectors(), context))
    assert str(caught.value) == (
        "layers/0: this layer asks for the input 'encoder', which nobody provides. The inputs "
        "here: images, tokens. Provide it in the model or in a layer around this one: "
        "context.provide('encoder', value)."
    )


def test_a_context_without_inputs_has_the_leaves_it_had() -> None:
    plain = token_context()
    assert [leaf.shape for leaf in jax.tree.leaves(plain)] == [(BATCH, SEQUENCE)] * 2
    paths = [jax.tree_util.keystr(path) for path, _ in jax.tree_util.tree_leaves_with_path(plain)]
    assert paths == [".positions_BS", ".segment_ids_BS"]


def test_a_context_is_a_pytree_with_its_inputs() -> None:
    context = token_context().provide("b", {"x": 1.0}).provide("a", 2.0).promise_contiguous()
    doubled = jax.tree.map(lambda leaf: 2 * leaf, context)
    assert (doubled.get("a"), doubled.get("b")) == (4.0, {"x": 2.0})
    assert doubled.contiguous
    assert not context.inputs.keys() - {"a", "b"}


def test_positions_on_several_axes() -> None:
    plain = token_context()
    one = plain.positions_on_axes(2)
    np.testing.assert_array_equal(one, np.stack([plain.positions_BS] * 2, axis=-1))
    axes = jnp.arange(2 * plain.positions_BS.size).reshape(*plain.positions_BS.shape, 2)
    context = dataclasses.replace(plain, axis_positions_BSA=axes).provide("tokens", tokens())
    leaves = jax.tree_util.tree_leaves_with_path(context.promise_contiguous())
    assert [jax.tree_util.keystr(path) for path, _ in leaves] == [
        *(".positions_BS", ".segment_ids_BS", ".axis_positions_BSA"),
        ".tokens",
    ]
    hidden = jax.tree.map(lambda leaf: leaf, context.hide(plain.positions_BS == 1))
    np.testing.assert_array_equal(hidden.positions_on_axes(2), axes)
    with pytest.raises(
        ConfigError, match=r"on 3 axes, but the tokens have positions on 2: .*\(4, 6, 2\)"
    ):
        context.positions_on_axes(3)


def test_only_an_explicit_promise_is_contiguous() -> None:
    plain = token_context()
    promised = plain.promise_contiguous()
    assert (plain.contiguous, promised.contiguous) == (False, True)
    assert promised.provide("tokens", tokens()).contiguous
    hidden = promised.provide("tokens", tokens()).hide(plain.positions_BS == 1)
    assert not hidden.contiguous
    assert hidden.inputs.keys() == {"tokens"}
    np.testing.assert_array_equal(hidden.segment_ids_BS[0], [1, 0, 1, 1, 1, 1])
    assert not dataclasses.replace(promised, segment_ids_BS=plain.segment_ids_BS).contiguous


class TokenBias(Module):
    """A layer that adds a learned bias per token id."""

    class Config(Module.Config["TokenBias"]):
        width: int = REQUIRED

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self.table = parameter((VOCAB, config.width), ("vocab", "embed"), Normal.Config())

    def __call__(self, x_BSE: jax.Array, context: TokenContext) -> jax.Array:
        return x_BSE + self.table[context.get("tokens")]


def test_a_language_model_provides_its_tokens() -> None:
    config = llama(width=WIDTH, num_layers=1, num_heads=2, hidden=24, vocab_size=VOCAB)
    config = replace(config, Stack, Stack.Config(layer=TokenBias.Config()))
    model = config.build()
    params = initialize(model, jax.random.key(0))
    logits, _ = functional(model, params, (tokens(),), method="predict")
    params["decoder/stack/layer/table"] *= 2
    changed, _ = functional(model, params, (tokens(),), method="predict")
    assert not np.allclose(logits, changed)
