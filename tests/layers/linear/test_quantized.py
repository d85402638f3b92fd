"""Products in small types, against NumPy with its own types of eight bits."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest

from dovetail.config import replace, select
from dovetail.features import NotApplicable
from dovetail.kernels.grouped_matmul import grouped_matmul
from dovetail.layers import Linear
from dovetail.layers.linear.linear import Matmul
from dovetail.layers.linear.quantized import Fp8Matmul, Int8Matmul, QuantizedMatmul
from dovetail.layers.moe import TopKRouter
from dovetail.module import Module, functional, initialize, parameter_specs, ragged_vmap, repeated
from dovetail.parallel import AxisRules, MeshLayout, Placement, use_placement
from tests.features.representatives import every_representative, tiny
from tests.layers.cases import mixture, random_params, vectors
from tests.module.programs import lowered

E4M3, E5M2 = ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2
PRODUCTS = {"fp8": Fp8Matmul, "int8": Int8Matmul}

every_product = pytest.mark.parametrize("name", PRODUCTS)


def near(values: np.ndarray, axis: Any, dtype: Any) -> np.ndarray:
    """Returns the nearest numbers that the type can say, as float64."""
    limit = 127.0 if dtype is np.int8 else float(ml_dtypes.finfo(dtype).max)
    scale = np.abs(values).max(axis=axis, keepdims=True) / limit
    scaled = np.asarray(values / scale, np.float32)
    kept = np.rint(scaled) if dtype is np.int8 else scaled.astype(dtype)
    return kept.astype(np.float64) * scale


def expected(name: str, x: np.ndarray, weight: np.ndarray, gradient: np.ndarray) -> Any:
    """The product and its gradients, as the docstrings say them."""
    values, gradients = (E4M3, E5M2) if name == "fp8" else (np.int8, np.int8)
    x_, weight_ = near(x, -1, values), near(weight, 0, values)
    x_scale = np.abs(x).max(-1, keepdims=True)
    weight_scale = np.abs(weight).max(0)
    for_x = near(gradient * weight_scale, -1, gradients) / weight_scale
    for_weight = near(gradient * x_scale, 0, gradients) / x_scale if name == "fp8" else gradient
    return x_ @ weight_, for_x @ weight_.T, x_.T @ for_weight


def arrays(rows: int = 12) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    random = np.random.default_rng(0)
    sizes = np.exp(random.normal(size=(rows, 1)) * 3)
    x = random.normal(size=(rows, 16)) * sizes
    weight = random.normal(size=(16, 8)) * np.exp(random.normal(size=8))
    return x, weight, random.normal(size=(rows, 8))


@every_product
def test_the_product_and_its_gradients(name: str) -> None:
    product = PRODUCTS[name].Config().build()
    x, weight, gradient = arrays()
    single = [jnp.asarray(array, jnp.float32) for array in (x, weight, gradient)]
    y, pull = jax.vjp(product, *single[:2])
    found = (y, *pull(single[2]))
    for mine, theirs in zip(found, expected(name, x, weight, gradient), strict=True):
        np.testing.assert_allclose(mine, theirs, atol=1e-4 * np.abs(theirs).max())
    relative = np.linalg.norm(y - x @ weight) / np.linalg.norm(x @ weight)
    assert 1e-3 < relative < (0.05 if name == "fp8" else 0.02), "rounded, and not by much"


@every_product
def test_axes_before_the_last_are_rows(name: str) -> None:
    product = PRODUCTS[name].Config().build()
    x, weight, _ = (jnp.asarray(array, jnp.float32) for array in arrays())
    whole = product(x.reshape(3, 4, 16), weight)
    np.testing.assert_array_equal(whole.reshape(12, 8), product(x, weight))
    by_weight = jax.grad(lambda w, x: (product(x, w) ** 2).sum())
    np.testing.assert_allclose(
        by_weight(weight, x.reshape(3, 4, 16)), by_weight(weight, x), rtol=1e-5
    )


@every_product
def test_nothing_is_zero_and_what_is_not_finite_stays_so(name: str) -> None:
    product = PRODUCTS[name].Config().build()
    x = jnp.zeros((3, 4)).at[1].set(jnp.nan).at[2, 0].set(jnp.inf)
    y = product(x, jnp.ones((4, 2)))
    assert not y[0].any()
    assert not np.isfinite(y[1:]).any()
    gradients = jax.grad(lambda x: product(x, jnp.ones((4, 2))).sum() * 0.0)(jnp.zeros((3, 4)))
    assert not gradients.any()


@every_product
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_types_come_out_as_they_go_in(name: str, dtype: str) -> None:
    product = PRODUCTS[name].Config().build()
    x, weight = jnp.ones((3, 4), dtype), jnp.ones((4, 2), dtype)
    y, pull = jax.vjp(product, x, weight)
    assert {array.dtype.name for array in (y, *pull(y))} == {dtype}


class Copies(Module):
    """Linear maps, each with rows of its own."""

    def __init__(self, config: Copies.Config) -> None:
        super().__init__(config)
        map_ = Linear.Config(in_features=16, out_features=8, matmul=Matmul.Config())
        self.map = repeated(map_.build(), 3, "expert")

    def __call__(self, x: jax.Array, sizes: jax.Array) -> jax.Array:
        return ragged_vmap(self.map, self.map, x, group_sizes=sizes, matmul=grouped_matmul)


@every_product
def test_inside_experts_each_row_meets_its_own_weight(name: str) -> None:
    module = Copies.Config().build()
    module.map.matmul = PRODUCTS[name].Config().build()
    x, _, gradient = arrays()
    weight = np.random.default_rng(1).normal(size=(3, 16, 8))
    # Scales are shared, so the largest number of a column is the same for all.
    weight[:, 0] = 6.0
    sizes = (5, 0, 7)

    def run(weight: jax.Array, x: jax.Array) -> jax.Array:
        return functional(module, {"map/weight": weight}, (x, jnp.asarray(sizes)))[0]

    y, pull = jax.vjp(run, jnp.asarray(weight, jnp.float32), jnp.asarray(x, jnp.float32))
    by_weight, by_x = pull(jnp.asarray(gradient, jnp.float32))
    for copy, rows in ((0, slice(0, 5)), (2, slice(5, 12))):
        own = expected(name, x[rows], weight[copy], gradient[rows])[0]
        np.testing.assert_allclose(y[rows], own, atol=1e-4 * np.abs(own).max())
        exact = gradient[rows] @ weight[copy].T
        assert np.linalg.norm(by_x[rows] - exact) < 0.1 * np.linalg.norm(exact)
        exact = x[rows].T @ gradient[rows]
        assert np.linalg.norm(by_weight[copy] - exact) < 0.1 * np.linalg.norm(exact)
    assert not by_weight[1].any()


@every_product
def test_a_mixture_of_rounded_experts_is_near_the_plain_one(name: str) -> None:
    config = replace(mixture(), Matmul, PRODUCTS[name].Config(), outside=(TopKRouter,))
    plain, rounded = mixture().build(), config.build()
    params = random_params(plain)
    assert parameter_specs(rounded).keys() == params.keys()
    run = [functional(m, params, (vectors(),), losses="discard")[0] for m in (plain, rounded)]
    assert 1e-3 < np.linalg.norm(run[1] - run[0]) / np.linalg.norm(run[0]) < 0.1


@every_product
def test_rounded_experts_on_several_devices(name: str) -> None:
    config = replace(mixture(), Matmul, PRODUCTS[name].Config(), outside=(TopKRouter,))
    module = config.build()
    params = random_params(module)
    placement = Placement(
        MeshLayout.Config(data=2, fsdp=2, model=2).build().mesh(), AxisRules.Config().build()
    )
    shardings = {
        path: placement.sharding(spec.axes, spec.shape, path)
        for path, spec in parameter_specs(module).items()
    }

    def measure(params: Any, x: jax.Array, module: Any = module) -> jax.Array:
        return (functional(module, params, (x,), losses="discard")[0] ** 2).sum()

    def sharded(params: Any, x: jax.Array) -> Any:
        with use_placement(placement):
            return jax.grad(measure)(params, x)

    batch = placement.sharding(("batch",))
    split = jax.jit(sharded, in_shardings=(shardings, batch), out_shardings=shardings)
    whole = jax.jit(jax.grad(measure))(params, vectors())
    exact = jax.jit(jax.grad(functools.partial(measure, module=mixture().build())))(
        params, vectors()
    )
    for path, gradient in split(params, vectors()).items():
        # A device finds the scale of a column among its own rows, so what is rounded differs; but
        # it is rounded as well, and alike but for that.
        errors = [np.linalg.norm(each - exact[path]) for each in (gradient, whole[path])]
        assert errors[0] < 1.05 * errors[1], path
        assert np.linalg.norm(gradient - whole[path]) < 0.5 * errors[1], path


def test_a_plain_product_adds_nothing_to_the_program() -> None:
    module = Linear.Config(in_features=16, out_features=8).build()
    params = initialize(module, jax.random.key(0))
    mine = lambda params, x: functional(module, params, (x,))[0]  # noqa: E731
    hand = lambda params, x: x @ params["weight"]  # noqa: E731
    assert lowered(mine, params, vectors()) == lowered(hand, params, vectors())


@every_representative
@pytest.mark.parametrize("feature", PRODUCTS)
def test_every_linear_map_but_the_routers_is_rounded(name: str, feature: str) -> None:
    config = tiny(name, feature)
    routers = select(config, TopKRouter).found
    plain, small = (select(config, kind).found for kind in (Matmul, QuantizedMatmul))
    assert len(small) == len(select(config, Linear)) - len(plain) > 0
    assert all(any(path.startswith(f"{router}.") for router in routers) for path in plain)
    assert shapes(config.build().model) == shapes(tiny(name).build().model)
    with pytest.raises(NotApplicable, match="its matmuls are quantized already"):
        tiny(name, feature, "fp8")


def shapes(model: Module) -> dict[str, tuple[int, ...]]:
    return {path: spec.shape for path, spec in parameter_specs(model).items()}
