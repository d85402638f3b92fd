"""After jit, a model is the same program as its mathematics written by hand."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import pytest

from dovetail.config import ConfigOf, replace
from dovetail.module import Module, functional, repeated, scan
from tests.module.example_modules import KEY, X_BE, Dense, LowRank, Sequence, weights
from tests.module.programs import lowered, operations, temporary_bytes


class Block(Module):
    """A feed-forward layer with a residual, which may talk about itself."""

    class Config(Module.Config["Block"]):
        up: ConfigOf[Module] = Dense.Config()
        down: ConfigOf[Module] = Dense.Config()
        talks: bool = False

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self.up, self.down, self.talks = config.up.build(), config.down.build(), config.talks

    def __call__(self, x: jax.Array) -> jax.Array:
        if self.talks:
            self.add_loss("size", jnp.sum(x**2), x.shape[0])
        return x + self.down(jax.nn.silu(self.up(x)))


class Model(Module):
    """A map, a scanned stack with recomputation, and a map."""

    class Config(Module.Config["Model"]):
        block: ConfigOf[Module] = Block.Config()
        ends: ConfigOf[Module] = Dense.Config()

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self.first, self.last = config.ends.build(), config.ends.build()
        self.block = repeated(config.block.build(), 3)

    def __call__(self, x: jax.Array) -> jax.Array:
        x = self.first(x)
        around = functools.partial(jax.checkpoint, prevent_cse=False)
        x, _ = scan(self.block, lambda x, _: (self.block(x), None), x, around=around)
        return self.last(x)


def dense(params: dict[str, Any], path: str, x: Any) -> Any:
    return x @ params[f"{path}/weight"] + params[f"{path}/bias"]


def by_hand(params: dict[str, Any], x: Any, talks: bool) -> Any:
    stacked = {path: value for path, value in params.items() if path.startswith("block/")}

    def body(x: Any, layer: dict[str, Any]) -> Any:
        said = (jnp.sum(x**2), jnp.float32(x.shape[0])) if talks else ()
        return x + dense(layer, "block/down", jax.nn.silu(dense(layer, "block/up", x))), said

    x = dense(params, "first", x)
    x, said = jax.lax.scan(jax.checkpoint(body, prevent_cse=False), x, stacked)
    said = [value.sum(0) for value in said]
    return dense(params, "last", x), said


def ours(model: Module, params: dict[str, Any], x: Any, **options: Any) -> Any:
    result, outputs = functional(model, params, x, losses="return", **options)
    return result, [value for loss in outputs.losses.values() for value in loss]


def total(function: Any, params: dict[str, Any]) -> Any:
    """A scalar to differentiate: the result and the losses."""
    result, said = function(params)
    return result.sum() + sum(said)


@pytest.mark.parametrize("talks", [False, True], ids=["silent", "with_losses"])
@pytest.mark.parametrize("is_gradient", [False, True], ids=["forward", "gradient"])
def test_the_program_is_the_one_by_hand(talks: bool, is_gradient: bool) -> None:
    model = Model.Config(block=Block.Config(talks=talks)).build()
    params = weights(model)
    # A key that nobody draws from must not cost anything either.
    functions = [
        lambda params: ours(model, params, X_BE),
        lambda params: by_hand(params, X_BE, talks),
        lambda params: ours(model, params, X_BE, key=KEY),
    ]
    if is_gradient:
        functions = [jax.grad(functools.partial(total, function)) for function in functions]
    mine, hand, with_key = functions
    assert lowered(mine, params) == lowered(hand, params)
    assert operations(mine, params) == operations(hand, params)
    assert operations(with_key, params) == operations(hand, params)
    assert temporary_bytes(with_key, params) == temporary_bytes(hand, params)


def test_the_comparison_can_tell_programs_apart() -> None:
    model = Model.Config().build()
    params = weights(model)
    plain = functools.partial(ours, model)

    def more(params: Any, x: Any) -> Any:
        result, said = ours(model, params, x)
        return result @ params["first/weight"], said

    assert lowered(plain, params, X_BE) != lowered(more, params, X_BE)
    assert operations(plain, params, X_BE) != operations(more, params, X_BE)


def test_wrapping_costs_only_its_own_mathematics() -> None:
    config = Sequence.Config(parts={"a": Dense.Config()})
    wrapped = replace(config, Dense, LowRank.Config()).build()

    def hand(params: dict[str, Any], x: Any) -> Any:
        plain = dense(params, "parts/a", x)
        return plain + x @ params["parts/a/low_in"] @ params["parts/a/low_out"]

    def mine(params: dict[str, Any], x: Any) -> Any:
        return functional(wrapped, params, x)[0]

    assert lowered(mine, weights(wrapped), X_BE) == lowered(hand, weights(wrapped), X_BE)
