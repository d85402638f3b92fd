"""Explicit tying: a reference uses another module's weights at a call path of its own."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dovetail.config import ConfigError, ConfigOf
from dovetail.module import (
    Module,
    Shared,
    functional,
    initialize_variables,
    parameter_specs,
    repeated,
    scan,
)
from tests.module.example_modules import KEY, X_BE, Counter, Dense, Noise, Sequence, Tied, weights


def test_a_reference_has_no_weights_and_its_gradient_flows_to_the_one_array() -> None:
    model = Tied.Config().build()
    params = weights(model)
    assert set(params) == {"inward/weight", "inward/bias"}

    def ours(params):
        return functional(model, params, X_BE)[0].sum()

    def by_hand(first, second):
        hidden = jnp.tanh(X_BE @ first["inward/weight"] + first["inward/bias"])
        return (hidden @ second["inward/weight"] + second["inward/bias"]).sum()

    both = jax.grad(by_hand, argnums=(0, 1))(params, params)
    expected = jax.tree.map(jnp.add, *both)
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5), jax.grad(ours)(params), expected
    )


class Head(Module):
    """Uses its child in every way that a reference allows."""

    class Config(Module.Config["Head"]):
        table: ConfigOf[Module] = Dense.Config()
        head: ConfigOf[Module] = Shared.Config(path="table")

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self.table, self.head = config.table.build(), config.head.build()

    def __call__(self, x: jax.Array) -> jax.Array:
        return self.head.transposed(x)

    def weight_of_head(self) -> jax.Array:
        return self.head.weight

    def width_of_head(self) -> int:
        return self.head.width


def test_other_methods_and_attributes_of_the_target() -> None:
    model = Head.Config().build()
    params = weights(model)
    result, outputs = functional(model, params, X_BE)
    np.testing.assert_allclose(result, X_BE @ params["table/weight"].T, rtol=1e-6)
    assert set(outputs.outputs) == {"head/seen"}, "side outputs belong to the caller's path"
    weight, _ = functional(model, params, (), method="weight_of_head")
    np.testing.assert_array_equal(weight, params["table/weight"])
    assert functional(model, params, (), method="width_of_head")[0] == 4


def test_a_swapped_reference_is_untied() -> None:
    assert "head/weight" in parameter_specs(Head.Config(head=Dense.Config()).build())


class Layer(Module):
    """A layer of a stack whose map lies outside of the stack."""

    class Config(Module.Config["Layer"]):
        own: ConfigOf[Module] = Dense.Config()
        common: ConfigOf[Module] = Shared.Config(path="common")

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self.own, self.common = config.own.build(), config.common.build()

    def __call__(self, x: jax.Array) -> jax.Array:
        return jnp.tanh(self.own(x) + self.common(x))


class Outer(Module):
    """A stack of such layers beside the map that they share."""

    class Config(Module.Config["Outer"]):
        layer: ConfigOf[Module] = Layer.Config()
        common: ConfigOf[Module] = Dense.Config()

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self.layer = repeated(config.layer.build(), 3)
        self.common = config.common.build()

    def __call__(self, x: jax.Array) -> jax.Array:
        return scan(self.layer, lambda x, _: (self.layer(x), None), x)[0]


def test_a_scanned_layer_may_refer_to_a_module_outside_of_it() -> None:
    model = Outer.Config().build()
    params = weights(model)
    assert params["common/weight"].shape == (4, 4)

    def by_hand(params):
        x = X_BE
        for i in range(3):
            own = x @ params["layer/own/weight"][i] + params["layer/own/bias"][i]
            x = jnp.tanh(own + x @ params["common/weight"] + params["common/bias"])
        return x.sum()

    def ours(params):
        return functional(model, params, X_BE)[0].sum()

    expected, got = jax.grad(by_hand)(params), jax.jit(jax.grad(ours))(params)
    for path in params:
        np.testing.assert_allclose(got[path], expected[path], rtol=1e-4, atol=1e-5)


def test_cache_and_keys_of_a_reference_are_its_own() -> None:
    parts = {"first": Counter.Config(), "second": Shared.Config(path="parts/first")}
    model = Sequence.Config(parts=parts).build()
    params, variables = weights(model), initialize_variables(model, KEY)
    _, outputs = functional(model, params, X_BE, variables=variables)
    assert set(outputs.cache or {}) == {"parts/first/last", "parts/second/last"}
    assert outputs.variables is not None
    assert outputs.variables["parts/first/calls"] == 2, "a variable belongs to its owner"

    noises = {"first": Noise.Config(), "second": Shared.Config(path="parts/first")}
    model = Sequence.Config(parts=noises).build()
    _, outputs = functional(model, {}, X_BE, key=KEY)
    first, second = outputs.outputs["parts/first/noise"], outputs.outputs["parts/second/noise"]
    assert not np.allclose(first, second)


def test_a_tied_model_may_be_a_part_of_a_larger_one() -> None:
    pair = Sequence.Config(parts={"student": Tied.Config(), "teacher": Tied.Config()}).build()
    params = weights(pair)
    assert len(params) == 4
    alone = Tied.Config().build()
    x = X_BE
    for name in ("student", "teacher"):
        own = {path.removeprefix(f"parts/{name}/"): value for path, value in params.items()}
        x, _ = functional(alone, own, x)
    np.testing.assert_allclose(functional(pair, params, X_BE)[0], x, rtol=1e-6)


def test_a_reference_to_a_reference() -> None:
    parts = {
        "first": Dense.Config(),
        "second": Shared.Config(path="parts/first"),
        "third": Shared.Config(path="parts/second"),
    }
    model = Sequence.Config(parts=parts).build()
    params = weights(model)
    assert len(params) == 2
    x = X_BE
    for _ in range(3):
        x = x @ params["parts/first/weight"] + params["parts/first/bias"]
    np.testing.assert_allclose(functional(model, params, X_BE)[0], x, rtol=1e-5)


def test_an_unknown_path_names_the_nearest() -> None:
    model = Tied.Config(outward=Shared.Config(path="inwards")).build()
    with pytest.raises(ConfigError, match=r"outward: there is no .* 'inwards'.*mean 'inward'"):
        functional(model, weights(model), X_BE)


def test_a_reference_cannot_name_itself() -> None:
    model = Tied.Config(outward=Shared.Config(path="outward")).build()
    with pytest.raises(ConfigError, match="there is no module at 'outward'"):
        functional(model, weights(model), X_BE)


class CallsCommon(Outer):
    """Calls the reference outside of the scan."""

    def __call__(self, x: jax.Array) -> jax.Array:
        return self.common(x)


def test_one_layer_of_a_stack_cannot_be_referred_to_from_outside() -> None:
    config = CallsCommon.Config(layer=Dense.Config(), common=Shared.Config(path="layer"))
    model = config.build()
    with pytest.raises(RuntimeError, match="'layer' is repeated 3 times"):
        functional(model, weights(model), X_BE)
