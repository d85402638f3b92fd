"""Computing in a lower precision than parameters are kept in."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dovetail.config import ConfigError
from dovetail.module import Module, functional, parameter
from tests.module.example_modules import X_BE, Dense, Host, LowRank, Sequence, Stack, weights


class Types(Module):
    """Returns the types of what it reads."""

    def __init__(self, config: Module.Config) -> None:
        super().__init__(config)
        self.low = parameter((2,), (None,))
        self.kept = parameter((2,), (None,), keeps_dtype=True)
        self.whole = parameter((2,), (None,), dtype="int32")

    def __call__(self) -> list[str]:
        return [str(value.dtype) for value in (self.low, self.kept, self.whole)]


def types_of(config) -> list[str]:
    model = config.build()
    return functional(model, weights(model), ())[0]


def test_reads_are_cast_except_where_the_spec_says_not() -> None:
    assert types_of(Types.Config()) == ["float32", "float32", "int32"]
    assert types_of(Types.Config(dtype="bfloat16")) == ["bfloat16", "float32", "int32"]


def test_the_nearest_ancestor_wins() -> None:
    class Around(Sequence):
        def __call__(self) -> list[str]:
            return self.parts["a"]()

    def nested(outer, middle, inner):
        middle_config = Around.Config(parts={"a": Types.Config(dtype=inner)}, dtype=middle)
        return types_of(Around.Config(parts={"a": middle_config}, dtype=outer))[0]

    assert nested("bfloat16", None, None) == "bfloat16"
    assert nested("bfloat16", "float16", None) == "float16"
    assert nested("bfloat16", None, "float32") == "float32"


def test_gradients_are_in_the_type_of_the_parameter() -> None:
    model = Stack.Config(layer=LowRank.Config(base=Dense.Config()), dtype="bfloat16").build()
    params = weights(model)

    def total(params):
        result, _ = functional(model, params, X_BE.astype(jnp.bfloat16))
        return result.sum().astype(jnp.float32)

    gradient = jax.jit(jax.grad(total))(params)
    assert {value.dtype for value in gradient.values()} == {jnp.dtype("float32")}
    assert all(np.abs(value).sum() > 0 for value in gradient.values())


def test_a_parent_reads_its_child_in_the_childs_type() -> None:
    def how(model, x):
        return model.one.weight.dtype

    model = Host.Config(child=Dense.Config(dtype="bfloat16")).build()
    assert functional(model, weights(model), (how, X_BE))[0] == jnp.bfloat16


def test_an_unknown_type_is_named_with_its_place() -> None:
    model = Sequence.Config(parts={"a": Dense.Config(dtype="bfloat")}).build()
    with pytest.raises(ConfigError, match="parts/a/dtype: 'bfloat' is not a dtype"):
        weights(model)
