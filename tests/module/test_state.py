"""The three kinds of state: parameters and variables by owner path, cache by call path."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dovetail.config import ConfigError
from dovetail.module import (
    Module,
    functional,
    initialize_variables,
    parameter,
    parameter_specs,
    repeated,
    variable,
    variable_specs,
)
from tests.module.example_modules import (
    KEY,
    X_BE,
    Chatty,
    Counter,
    Dense,
    Host,
    Sequence,
    Stack,
    weights,
)


class Twice(Module):
    """Calls the same child at two call sites of its own method."""

    def __init__(self, config: Module.Config) -> None:
        super().__init__(config)
        self.counter = Counter.Config().build()

    def __call__(self, x: jax.Array) -> jax.Array:
        return self.counter(self.counter(x))


def test_parameters_and_variables_are_flat_dicts_by_path() -> None:
    config = Sequence.Config(parts={"a": Dense.Config(), "b": Stack.Config(layer=Counter.Config())})
    model = config.build()
    assert {path: spec.shape for path, spec in parameter_specs(model).items()} == {
        "parts/a/bias": (4,),
        "parts/a/weight": (4, 4),
        "parts/b/layer/scale": (3, 4),
    }
    assert {path: spec.shape for path, spec in variable_specs(model).items()} == {
        "parts/b/layer/calls": (3,)
    }


def test_variables_are_read_and_assigned_in_methods() -> None:
    model = Twice.Config().build()
    params, variables = weights(model), initialize_variables(model, KEY)
    _, outputs = functional(model, params, X_BE, variables=variables)
    assert outputs.variables is not None
    assert outputs.variables["counter/calls"] == 2
    assert variables["counter/calls"] == 0, "functional() leaves its arguments alone"


def test_variables_cross_a_scan() -> None:
    model = Stack.Config(layer=Counter.Config()).build()
    params, variables = weights(model), initialize_variables(model, KEY)
    for expected in (1, 2):
        _, outputs = jax.jit(lambda v: functional(model, params, X_BE, variables=v))(variables)
        variables = outputs.variables
        np.testing.assert_array_equal(variables["layer/calls"], [expected] * 3)


def test_variables_may_be_left_out_until_they_are_read() -> None:
    model = Stack.Config(layer=Counter.Config()).build()
    with pytest.raises(ConfigError, match=r"The variable 'layer/calls' was not given"):
        functional(model, weights(model), X_BE)


def test_a_variable_keeps_its_shape_and_type() -> None:
    class Grows(Module):
        def __init__(self, config: Module.Config) -> None:
            super().__init__(config)
            self.total = variable((2,), (None,))

        def __call__(self, x: jax.Array) -> None:
            self.total = x

    model = Grows.Config().build()
    variables = initialize_variables(model, KEY)
    _, outputs = functional(model, {}, jnp.ones(2, jnp.bfloat16), variables=variables)
    assert outputs.variables is not None
    assert outputs.variables["total"].dtype == jnp.float32
    with pytest.raises(ValueError, match=r"'total' has the shape \(2,\).* of \(3,\)"):
        functional(model, {}, jnp.ones(3), variables=variables)


def test_a_parameter_cannot_be_assigned_by_a_method() -> None:
    class Cheats(Module):
        def __init__(self, config: Module.Config) -> None:
            super().__init__(config)
            self.weight = parameter((), ())

        def __call__(self, x: jax.Array) -> None:
            self.weight = x

    with pytest.raises(RuntimeError, match="'weight' is a parameter"):
        functional(Cheats.Config().build(), {"weight": jnp.ones(())}, jnp.ones(()))


def test_the_cache_is_kept_by_call_path_and_starts_empty() -> None:
    model = Sequence.Config(parts={"a": Counter.Config(), "b": Counter.Config()}).build()
    params, variables = weights(model), initialize_variables(model, KEY)
    first, outputs = functional(model, params, X_BE, variables=variables)
    assert set(outputs.cache or {}) == {"parts/a/last", "parts/b/last"}
    second, _ = functional(model, params, X_BE, variables=variables, cache=outputs.cache)
    assert not np.allclose(first, second)
    again, _ = functional(model, params, X_BE, variables=variables)
    np.testing.assert_array_equal(first, again)


@pytest.mark.parametrize("leave", ["variable", "cache"])
def test_state_outside_the_layer_cannot_be_written_in_a_scan(leave: str) -> None:
    def through(model, x):
        def body(carry, _):
            if leave == "variable":
                return model.one(carry), None
            model.write_cache("mine", carry)
            return carry, None

        from dovetail.module import scan

        return scan(model.many, body, x)

    model = Host.Config(child=Counter.Config()).build()
    params, variables = weights(model), initialize_variables(model, KEY)
    with pytest.raises(ValueError, match=r"'(one/calls|mine)' does not belong to the repeated"):
        functional(model, params, (through, X_BE), variables=variables)


def test_a_method_cannot_keep_things_on_the_module() -> None:
    class Leaks(Module):
        def __call__(self, x: jax.Array) -> None:
            self.last = x

    with pytest.raises(RuntimeError, match=r"Leaks.last was assigned while the model runs"):
        functional(Leaks.Config().build(), {}, X_BE)


def test_a_module_may_be_built_while_another_runs() -> None:
    def build(model, x):
        return Dense.Config(width=2).build().config.width

    result, _ = functional(Host.Config().build(), {}, (build, X_BE))
    assert result == 2


def test_children_are_found_in_nested_containers_and_after_appending() -> None:
    class Holder(Module):
        def __init__(self, config: Module.Config) -> None:
            super().__init__(config)
            self.groups = [{"x": (Chatty.Config().build(),)}, repeated(Chatty.Config().build(), 2)]
            self.groups.append(Chatty.Config().build())
            self.gone = Dense.Config().build()
            self.gone = None

    shapes = {path: s.shape for path, s in parameter_specs(Holder.Config().build()).items()}
    assert shapes == {"groups/0/x/0/scale": (4,), "groups/1/scale": (2, 4), "groups/2/scale": (4,)}


def test_parameters_in_a_list_are_refused() -> None:
    class Listed(Module):
        def __init__(self, config: Module.Config) -> None:
            super().__init__(config)
            self.weights = [parameter((1,), (None,))]

    with pytest.raises(ConfigError, match=r"Listed\.weights: a parameter .* in a list or dict"):
        Listed.Config().build()


def test_a_parameter_cannot_be_called_as_a_method_is() -> None:
    class Hides(Module):
        def __init__(self, config: Module.Config) -> None:
            super().__init__(config)
            self.training = parameter((1,), (None,))  # type: ignore[misc, assignment]

    with pytest.raises(ConfigError, match=r"Hides\.training is already a method or property"):
        Hides.Config().build()


def test_a_parameter_takes_the_place_of_a_plain_attribute() -> None:
    class Late(Module):
        def __init__(self, config: Module.Config) -> None:
            super().__init__(config)
            self.bias = None
            self.bias = parameter((), ())

        def __call__(self) -> jax.Array:
            return self.bias

    assert functional(Late.Config().build(), {"bias": jnp.ones(())}, ())[0] == 1


def test_inputs_are_positional_named_or_single() -> None:
    class Takes(Module):
        def __call__(self, a: int, b: int = 10) -> int:
            return a - b

        def other(self, a: int) -> int:
            return -a

    model = Takes.Config().build()
    assert functional(model, {}, (3, 1))[0] == 2
    assert functional(model, {}, {"b": 1, "a": 5})[0] == 4
    assert functional(model, {}, 10)[0] == 0
    assert functional(model, {}, 2, method="other")[0] == -2
