"""ragged_vmap(): sorted rows meet the arrays of their own copy, as if each copy had run alone."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dovetail.config import REQUIRED, Config, ConfigOf
from dovetail.module import (
    GroupedParameter,
    Module,
    functional,
    matmul_with,
    parameter,
    parameter_specs,
    ragged_vmap,
    repeated,
    vmap_groups,
)
from dovetail.module.ragged import GroupedError
from tests.module.example_modules import Chatty, Counter, Dense, LowRank, Noise, Stack, weights

SIZES = np.array([3, 0, 4, 1])
ROWS = jax.random.normal(jax.random.key(3), (8, 4))


def ragged(x_NE: jax.Array, weight_XEF: jax.Array, sizes_X: jax.Array) -> jax.Array:
    return jax.lax.ragged_dot(x_NE, weight_XEF, sizes_X)


class Experts(Module):
    """Runs the rows of each group through its own copy of a child."""

    class Config(Module.Config["Experts"]):
        child: ConfigOf[Module] = REQUIRED

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self.child = repeated(config.child.build(), len(SIZES), "expert", active=2)

    def __call__(self, x: jax.Array) -> Any:
        return ragged_vmap(self.child, self.child, x, group_sizes=jnp.asarray(SIZES), matmul=ragged)


class Shaped(Module):
    """Uses a parameter in a way that the test says."""

    class Config(Module.Config["Shaped"]):
        shape: tuple[int, ...] = (4,)
        use: str = "add"

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self.use = USES[config.use]
        self.value = parameter(config.shape, (None,) * len(config.shape))

    def __call__(self, x: jax.Array) -> Any:
        return self.use(x, self.value)


USES: dict[str, Callable[[Any, Any], Any]] = {
    "add": lambda x, v: x + v,
    "one plus, times": lambda x, v: x * (1.0 + v),
    "left": lambda x, v: v * x - v / x,
    "minus, divided": lambda x, v: (x - v) / (2.0 * -v),
    "scalar": lambda x, v: v * x,
    "transposed": lambda x, v: x @ v.T,
    "merged": lambda x, v: x @ (v + 0.5 * (v @ v)),
    "einsum": lambda x, v: jnp.einsum("ne,ef->nf", x, v),
    "exp": lambda x, v: x * jnp.exp(v),
    "index": lambda x, v: x + v[0],
    "norm": lambda x, v: x + v.sum(),
    "left matmul": lambda x, v: v @ x,
    "other rows": lambda x, v: x[:3] @ v,
    "matrix added": lambda x, v: x + v,
    "vector product": lambda x, v: x @ v,
    "unpacked": lambda x, v: x + next(iter(v)),
}


def one_by_one(child: Config[Any], params: Any, x: jax.Array) -> jax.Array:
    """Runs each copy on its own rows, with arrays that are arrays."""
    module, starts = child.build(), np.cumsum([0, *SIZES])
    flat = x.reshape(-1, x.shape[-1])
    results = [
        functional(
            module,
            {path.removeprefix("child/"): value[index] for path, value in params.items()},
            flat[starts[index] : starts[index + 1]],
        )[0]
        for index in range(len(SIZES))
    ]
    return jnp.concatenate(results).reshape(*x.shape[:-1], -1)


@pytest.mark.parametrize("lead", [(8,), (2, 4)])
@pytest.mark.parametrize(
    "child",
    [
        Dense.Config(),
        LowRank.Config(base=Dense.Config()),
        *(Shaped.Config(use=use) for use in ("add", "one plus, times", "left", "minus, divided")),
        Shaped.Config(use="scalar", shape=()),
        *(Shaped.Config(use=use, shape=(4, 4)) for use in ("transposed", "merged")),
    ],
    ids=lambda child: f"{type(child).display_name()} {getattr(child, 'use', '')}",
)
def test_it_equals_each_copy_on_its_own_rows(child: Config[Any], lead: tuple[int, ...]) -> None:
    model = Experts.Config(child=child).build()
    params, x = weights(model), ROWS.reshape(*lead, 4)
    together = jax.jit(lambda p, x: functional(model, p, x)[0])
    np.testing.assert_allclose(together(params, x), one_by_one(child, params, x), rtol=1e-4)

    def total(run: Any) -> Any:
        return jax.grad(lambda p: jnp.sum(jnp.sin(run(p))))(params)

    got = total(lambda p: functional(model, p, x)[0])
    expected = total(lambda p: one_by_one(child, p, x))
    for path, gradient in expected.items():
        np.testing.assert_allclose(got[path], gradient, rtol=2e-3, atol=1e-4, err_msg=path)


@pytest.mark.parametrize(
    ("use", "shape"),
    [
        ("einsum", (4, 4)),
        ("exp", (4,)),
        ("index", (4,)),
        ("norm", (4,)),
        ("left matmul", (4, 4)),
        ("other rows", (4, 4)),
        ("matrix added", (4, 4)),
        ("vector product", (4,)),
        ("unpacked", (4,)),
    ],
)
def test_any_other_use_says_how_to_write_it(use: str, shape: tuple[int, ...]) -> None:
    model = Experts.Config(child=Shaped.Config(use=use, shape=shape)).build()
    with pytest.raises(GroupedError, match=r"rows @ parameter.*vmap"):
        functional(model, weights(model), ROWS)


def test_an_error_names_the_parameter_and_the_module() -> None:
    model = Experts.Config(child=Shaped.Config(use="norm")).build()
    with pytest.raises(GroupedError, match=r"child/value.*has no attribute 'sum'") as caught:
        functional(model, weights(model), ROWS)
    assert caught.value.__notes__ == ["in the module child (Shaped)"]


def test_parameters_are_read_in_the_compute_type() -> None:
    model = Experts.Config(child=Dense.Config(), dtype="bfloat16").build()
    params = weights(model)
    result, _ = functional(model, params, ROWS.astype(jnp.bfloat16))
    assert result.dtype == jnp.bfloat16
    exact = one_by_one(Dense.Config(), params, ROWS)
    np.testing.assert_allclose(result.astype(jnp.float32), exact, atol=0.1)
    mixed, _ = functional(model, params, ROWS)
    assert mixed.dtype == jnp.float32  # as x_float32 @ weight_bfloat16 is


def test_a_parameter_looks_like_one_copy() -> None:
    class Asks(Dense):
        def __call__(self, x_BE: jax.Array) -> jax.Array:
            assert isinstance(self.weight, GroupedParameter)
            assert (self.weight.shape, self.weight.ndim) == ((4, 4), 2)
            assert self.bias.T.shape == (4,)
            assert "child/weight" in repr(self.weight)
            assert not hasattr(self.weight, "sum")
            return super().__call__(x_BE)

    model = Experts.Config(child=Asks.Config()).build()
    functional(model, weights(model), ROWS)


def test_losses_and_summaries_are_those_of_all_rows() -> None:
    model = Experts.Config(child=Chatty.Config()).build()
    params = weights(model)
    _, outputs = functional(model, params, ROWS, losses="return")
    scale = np.repeat(np.asarray(params["child/scale"]), SIZES, axis=0)
    loss = outputs.losses["child/square"]
    np.testing.assert_allclose(loss.total, np.sum(np.asarray(ROWS) ** 2 * scale), rtol=1e-5)
    assert loss.weight == len(ROWS)
    np.testing.assert_allclose(outputs.summaries["child/mean"].value(), ROWS.mean(), rtol=1e-5)


def test_random_keys_are_given() -> None:
    model = Experts.Config(child=Noise.Config()).build()
    one, _ = functional(model, {}, ROWS, key=jax.random.key(0))
    again, _ = functional(model, {}, ROWS, key=jax.random.key(0))
    other, _ = functional(model, {}, ROWS, key=jax.random.key(1))
    np.testing.assert_array_equal(one, again)
    assert not np.allclose(one, other)
    assert len(np.unique(np.asarray(one - ROWS))) == ROWS.size


class Keeps(Module):
    """Writes what it sees into the cache."""

    def __call__(self, x: jax.Array) -> jax.Array:
        self.write_cache("seen", x)
        return x


class Resets(Counter):
    """Writes a variable, without reading it first."""

    def __call__(self, x_BE: jax.Array) -> jax.Array:
        self.calls = 0
        return x_BE


@pytest.mark.parametrize(("child", "path"), [(Keeps, "child/seen"), (Resets, "child/calls")])
def test_state_is_refused(child: type[Module], path: str) -> None:
    model = Experts.Config(child=child.Config()).build()
    variables = {"child/calls": jnp.zeros(4, jnp.int32)}
    with pytest.raises(GroupedError, match=rf"written inside ragged_vmap\(\): \['{path}'\].*vmap"):
        functional(model, weights(model), ROWS, variables=variables)


def test_updating_a_variable_is_refused() -> None:
    model = Experts.Config(child=Counter.Config()).build()
    variables = {"child/calls": jnp.zeros(4, jnp.int32)}
    with pytest.raises(GroupedError, match="not one array"):
        functional(model, weights(model), ROWS, variables=variables)


def test_a_repeated_child_inside_is_refused() -> None:
    model = Experts.Config(child=Stack.Config()).build()
    with pytest.raises(GroupedError, match="'child/layer/weight' is repeated inside of 'child'"):
        functional(model, weights(model), ROWS)


def test_specs_say_what_a_token_uses() -> None:
    specs = parameter_specs(Experts.Config(child=Stack.Config()).build())
    weight = specs["child/layer/weight"]
    assert (weight.size, weight.active_size) == (4 * 3 * 16, 2 * 3 * 16)
    plain = parameter_specs(Stack.Config().build())["layer/weight"]
    assert plain.size == plain.active_size


class Scaled(Module):
    """Uses its parameters in ways that `@`, `+` and `*` do not say."""

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        self.weight = parameter((4, 3), (None, None))
        self.power = parameter((), ())

    def __call__(self, x: jax.Array) -> Any:
        lengths = vmap_groups(lambda w, p: jnp.linalg.norm(w, axis=0) ** p, self.weight, self.power)
        return matmul_with(x, self.weight, self._doubled) * lengths

    @staticmethod
    def _doubled(product: Any, x: jax.Array, weight: jax.Array, *more: Any) -> jax.Array:
        return product(2.0 * x, weight, *more)


def test_functions_of_parameters_and_of_products() -> None:
    params = {
        "weight": jax.random.normal(jax.random.key(0), (4, 4, 3)),
        "power": jnp.arange(4.0),
    }
    module = Experts.Config(child=Scaled.Config()).build()
    inside = {f"child/{name}": value for name, value in params.items()}
    found = functional(module, inside, ROWS)[0]
    alone = Scaled.Config().build()
    bounds = np.cumsum(SIZES)
    for copy, (size, end) in enumerate(zip(SIZES, bounds, strict=True)):
        own = {name: value[copy] for name, value in params.items()}
        x = ROWS[end - size : end]
        expected = 2 * x @ own["weight"] * jnp.linalg.norm(own["weight"], axis=0) ** own["power"]
        np.testing.assert_allclose(found[end - size : end], expected, rtol=1e-5)
        np.testing.assert_allclose(functional(alone, own, x)[0], expected, rtol=1e-5)


def test_a_product_of_another_number_of_rows_is_refused() -> None:
    module = Halved.Config(child=Scaled.Config()).build()
    params = {"child/weight": jnp.ones((4, 4, 3)), "child/power": jnp.ones(4)}
    with pytest.raises(GroupedError, match=r"Expected 8 rows, got 4 \(4, 4\)"):
        functional(module, params, ROWS)


class Halved(Experts):
    """Forgets half of the rows."""

    def __call__(self, x: jax.Array) -> Any:
        return ragged_vmap(
            self.child,
            lambda x: self.child(x[:4]),
            x,
            group_sizes=jnp.asarray(SIZES),
            matmul=ragged,
        )
