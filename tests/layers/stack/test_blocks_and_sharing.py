"""Parallel blocks against numpy; shared layers against the same layer called again and again."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dovetail.config import Config, replace
from dovetail.layers import NoPositions, Stack, TokenContext, TransformerBlock
from dovetail.layers.residual import PostNorm
from dovetail.layers.stack.blocks import ParallelBlock
from dovetail.layers.stack.stack import SharedStack
from dovetail.module import (
    Module,
    functional,
    parameter_specs,
    repeated,
    scan,
    variable,
    variable_specs,
)
from tests.layers.cases import (
    HEAD_WIDTH,
    WIDTH,
    block,
    deep_mixture,
    mixing,
    random_params,
)
from tests.layers.references import grouped_attention, rms_norm, swiglu


def parallel() -> ParallelBlock.Config:
    config = replace(block(), TransformerBlock, ParallelBlock.Config(width=WIDTH))
    config.attention.positions = NoPositions.Config()
    return config


def test_a_parallel_block_adds_both_sublayers_of_one_norm() -> None:
    module = parallel().build()
    params, (x, context) = random_params(module), mixing()
    p = {path: np.asarray(value, np.float64) for path, value in params.items()}
    read = rms_norm(np.asarray(x, np.float64), p["attention_residual/norm/scale"], 1e-6)
    heads = [
        (read @ p[f"attention/{name}/weight"]).reshape(*x.shape[:2], -1, HEAD_WIDTH)
        for name in ("query", "key", "value")
    ]
    mixed = grouped_attention(*heads, np.asarray(context.segment_ids_BS), HEAD_WIDTH**-0.5)
    attended = mixed.reshape(*x.shape[:2], -1) @ p["attention/output/weight"]
    maps = (p[f"feed_forward/{name}/weight"] for name in ("gate", "up", "down"))
    expected = x + attended + swiglu(read, *maps)
    result, _ = functional(module, params, (x, context))
    np.testing.assert_allclose(result, expected, rtol=1e-4, atol=1e-4)


def test_a_parallel_block_takes_the_blocks_children_over() -> None:
    old = block().set(attention_residual=PostNorm.Config())
    new = replace(old, TransformerBlock, ParallelBlock.Config())
    assert (new.attention, new.feed_forward) == (old.attention, old.feed_forward)
    assert isinstance(new.attention_residual, PostNorm.Config)


def shared(layer: Config[Any], **fields: Any) -> SharedStack.Config:
    return SharedStack.Config(width=WIDTH, num_layers=3, layer=layer).set(**fields)


def test_shared_layers_have_the_parameters_of_one() -> None:
    one = parameter_specs(block().set(width=WIDTH).build())
    all_of_them = parameter_specs(shared(block()).build())
    assert {path: spec.shape for path, spec in all_of_them.items()} == {
        f"layer/{path}": spec.shape for path, spec in one.items()
    }
    assert all(spec.stacked == 0 for spec in all_of_them.values())


@pytest.mark.parametrize("unroll", [1, 3])
def test_a_shared_stack_is_a_stack_of_equal_layers(unroll: int) -> None:
    module, inputs = shared(block(), unroll=unroll).build(), mixing()
    plain = Stack.Config(width=WIDTH, num_layers=3, layer=block()).build()

    def loss(module: Module, params: Any) -> jax.Array:
        return jnp.sum(jnp.sin(functional(module, params, inputs)[0]))

    params = random_params(module)
    copies = {path: jnp.stack([value] * 3) for path, value in params.items()}
    value, gradient = jax.jit(jax.value_and_grad(lambda p: loss(module, p)))(params)
    expected, each = jax.jit(jax.value_and_grad(lambda p: loss(plain, p)))(copies)
    np.testing.assert_allclose(value, expected, rtol=1e-5)
    for path, summed in gradient.items():
        np.testing.assert_allclose(summed, each[path].sum(axis=0), rtol=1e-4, atol=1e-4)


class Counting(Module):
    """A layer that counts its turns in a variable, and keeps what it was given."""

    class Config(Module.Config["Counting"]):
        width: int = WIDTH

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self.turns = variable((), ())

    def __call__(self, x_BSE: jax.Array, context: TokenContext) -> jax.Array:
        self.turns = self.turns + 1
        self.write_cache("turn", self.turns)
        self.add_summary("turn", self.turns)
        return x_BSE


def test_variables_cross_from_turn_to_turn_and_caches_do_not() -> None:
    module = shared(Counting.Config()).build()
    specs = variable_specs(module)
    assert [spec.shape for spec in specs.values()] == [()]
    variables = {path: jnp.zeros(()) for path in specs}
    _, outputs = functional(module, {}, mixing(), variables=variables)
    assert outputs.variables is not None
    assert outputs.cache is not None
    assert float(outputs.variables["layer/turns"]) == 3
    assert outputs.cache["layer/turn"].tolist() == [1, 2, 3]
    _, outputs = functional(module, {}, mixing(), variables=outputs.variables, cache=outputs.cache)
    assert outputs.cache is not None
    assert outputs.cache["layer/turn"].tolist() == [4, 5, 6]


def test_experts_with_a_bias_can_be_shared() -> None:
    module = shared(block().set(feed_forward=deep_mixture())).build()
    variables = {path: jnp.zeros(s.shape, s.dtype) for path, s in variable_specs(module).items()}
    run = jax.jit(
        lambda p, x: functional(module, p, x, variables=variables, training=True, losses="discard")
    )
    _, outputs = run(random_params(module), mixing())
    assert outputs.variables is not None
    (bias,) = outputs.variables.values()
    assert bias.shape == (4,)
    assert np.abs(bias).max() > 0


class Misused(Module):
    """Runs a repeated child as if it were not."""

    class Config(Module.Config["Misused"]):
        pass

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self.layer = repeated(block().set(width=WIDTH).build(), 2)

    def __call__(self, x_BSE: jax.Array, context: TokenContext) -> jax.Array:
        body = lambda x, _: (self.layer(x, context), None)  # noqa: E731
        return scan(self.layer, body, x_BSE, times=2)[0]


def test_what_is_repeated_has_parameters_of_its_own() -> None:
    module = Misused.Config().build()
    with pytest.raises(ValueError, match="is repeated, so that its layers have parameters of"):
        functional(module, random_params(module), mixing())
