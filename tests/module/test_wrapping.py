"""Transparent wrapping: what a plain model knows keeps its path in the wrapped one."""

import jax
import numpy as np
import pytest

from dovetail.config import ConfigError, ConfigOf, replace, wraps
from dovetail.module import (
    Module,
    functional,
    initialize,
    initialize_variables,
    parameter,
    parameter_specs,
    repeated,
    vmap,
)
from tests.module.example_modules import (
    KEY,
    X_BE,
    Chatty,
    Counter,
    Dense,
    LowRank,
    Sequence,
    Stack,
    weights,
)


def test_the_wrapper_and_what_it_wraps_stand_side_by_side() -> None:
    plain = Sequence.Config(parts={"map": Dense.Config()})
    wrapped = replace(plain, Dense, LowRank.Config())
    assert list(parameter_specs(wrapped.build())) == [
        "parts/map/bias",
        "parts/map/low_in",
        "parts/map/low_out",
        "parts/map/weight",
    ]


@pytest.mark.parametrize("num_layers", [None, 3])
def test_plain_parameters_work_in_the_wrapped_model(num_layers: int | None) -> None:
    plain = Dense.Config() if num_layers is None else Stack.Config(num_layers=num_layers)
    wrapped = (
        LowRank.Config(base=plain)
        if num_layers is None
        else replace(plain, Dense, LowRank.Config())
    )
    params = initialize(plain.build(), KEY)
    fresh = initialize(wrapped.build(), KEY)
    assert params.keys() < fresh.keys()
    # The same paths are initialized alike, so wrapping does not disturb the rest.
    for path, value in params.items():
        np.testing.assert_array_equal(value, fresh[path])
    # The second factor at zero: the adapter changes nothing yet.
    adapted = {k: v * (0 if k.endswith("low_out") else 1) for k, v in fresh.items()} | params
    expected, _ = functional(plain.build(), params, X_BE)
    np.testing.assert_allclose(functional(wrapped.build(), adapted, X_BE)[0], expected, rtol=1e-6)
    assert not np.allclose(functional(wrapped.build(), fresh, X_BE)[0], expected)


class Gain(Module):
    """Another wrapper, with a parameter of another name."""

    class Config(Module.Config["Gain"]):
        inner: ConfigOf[Module] = wraps()

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self.inner = config.inner.build()
        self.gain = parameter((), ())

    def __call__(self, x: jax.Array) -> jax.Array:
        return self.inner(x) * self.gain


def test_wrappers_nest() -> None:
    model = Gain.Config(inner=LowRank.Config(base=Dense.Config())).build()
    params = weights(model)
    assert set(params) == {"weight", "bias", "low_in", "low_out", "gain"}
    plain = X_BE @ params["weight"] + params["bias"]
    expected = (plain + X_BE @ params["low_in"] @ params["low_out"]) * params["gain"]
    np.testing.assert_allclose(functional(model, params, X_BE)[0], expected, rtol=1e-5)


def test_a_clash_of_names_is_an_error_that_names_both() -> None:
    model = LowRank.Config(base=LowRank.Config(base=Dense.Config())).build()
    with pytest.raises(ConfigError, match=r"the root \(LowRank\) and base \(LowRank\).*'low_in'"):
        parameter_specs(model)


def test_the_wrapper_can_read_what_it_wraps() -> None:
    class Decomposed(LowRank):
        def __call__(self, x: jax.Array) -> jax.Array:
            return self.base.weight

    model = Decomposed.Config(base=Dense.Config()).build()
    params = weights(model)
    np.testing.assert_array_equal(functional(model, params, X_BE)[0], params["weight"])


def test_cache_and_side_outputs_of_the_two_stay_apart() -> None:
    class Remembers(Gain):
        def __call__(self, x: jax.Array) -> jax.Array:
            self.write_cache("last", x.sum())
            self.add_loss("square", x.sum(), 1)
            return self.inner(x)

    model = Sequence.Config(
        parts={
            "a": Remembers.Config(inner=Counter.Config()),
            "b": Remembers.Config(inner=Chatty.Config()),
        }
    ).build()
    variables = initialize_variables(model, KEY)
    _, outputs = functional(model, weights(model), X_BE, variables=variables, losses="return")
    assert set(outputs.cache or {}) == {"parts/a/last", "parts/a/inner/last", "parts/b/last"}
    assert set(outputs.losses) == {
        "parts/a/square",
        "parts/b/square",
        "parts/b/inner/square",
    }
    assert set(outputs.variables or {}) == {"parts/a/calls"}


class Experts(Module):
    """A wrapper that repeats what it wraps."""

    class Config(Module.Config["Experts"]):
        expert: ConfigOf[Module] = wraps()
        num_experts: int = 2

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self.expert = repeated(config.expert.build(), config.num_experts, "expert")

    def __call__(self, x: jax.Array) -> jax.Array:
        return vmap(self.expert, self.expert, x, in_axes=None).sum(0)


def test_a_repeated_wrapped_child_in_a_scanned_stack() -> None:
    plain = Stack.Config(layer=Dense.Config(), num_layers=3)
    model = replace(plain, Dense, Experts.Config()).build()
    spec = parameter_specs(model)["layer/weight"]
    assert (spec.shape, spec.axes) == ((3, 2, 4, 4), ("layers", "expert", "embed", "mlp"))
    assert spec.layer_paths("layer/weight")[:3] == [
        "layer/0/0/weight",
        "layer/0/1/weight",
        "layer/1/0/weight",
    ]
    params = weights(model)
    x = X_BE
    for weight, bias in zip(params["layer/weight"], params["layer/bias"], strict=True):
        x = sum(x @ w + b for w, b in zip(weight, bias, strict=True))
    np.testing.assert_allclose(functional(model, params, X_BE)[0], x, rtol=1e-4)


def test_the_cache_of_a_repeated_wrapped_child() -> None:
    model = Experts.Config(expert=Counter.Config()).build()
    params, variables = weights(model), initialize_variables(model, KEY)
    _, outputs = functional(model, params, X_BE, variables=variables)
    assert {path: value.shape for path, value in (outputs.cache or {}).items()} == {
        "expert/last": (2, 8, 4)
    }
    result, outputs = functional(
        model, params, X_BE, variables=outputs.variables, cache=outputs.cache
    )
    np.testing.assert_allclose(result, X_BE * params["scale"].sum(0) + 2 * X_BE, rtol=1e-5)
    np.testing.assert_array_equal((outputs.variables or {})["calls"], [2, 2])
