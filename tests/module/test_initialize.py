"""First values depend on the path and the layer index, and on nothing else."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding, PartitionSpec

from dovetail.config import Component
from dovetail.module import (
    ConstantInitializer,
    Module,
    Normal,
    ParameterSpec,
    VarianceScaling,
    initialize,
    initialize_variables,
    parameter,
    parameter_specs,
)
from tests.module.example_modules import KEY, Counter, Dense, Sequence, Stack


def test_neither_order_nor_siblings_matter() -> None:
    a, b, c = Dense.Config(), Dense.Config(), Counter.Config()
    one = initialize(Sequence.Config(parts={"a": a, "b": b}).build(), KEY)
    other = initialize(Sequence.Config(parts={"c": c, "b": b, "a": a}).build(), KEY)
    for path, value in one.items():
        np.testing.assert_array_equal(value, other[path])


def test_different_paths_and_keys_differ() -> None:
    model = Sequence.Config(parts={"a": Dense.Config(), "b": Dense.Config()}).build()
    params = initialize(model, KEY)
    assert not np.allclose(params["parts/a/weight"], params["parts/b/weight"])
    assert not np.allclose(
        params["parts/a/weight"], initialize(model, jax.random.key(1))["parts/a/weight"]
    )


def test_a_layer_starts_the_same_at_any_depth_of_stack() -> None:
    shallow, deep = (
        initialize(Stack.Config(layer=Stack.Config(num_layers=2), num_layers=n).build(), KEY)
        for n in (2, 4)
    )
    for path, value in shallow.items():
        assert value.shape[:2] == (2, 2)
        np.testing.assert_array_equal(value, deep[path][:2])
        flat = deep[path].reshape(8, -1)
        assert len(np.unique(flat[:, 0])) == 8, "no two layers are alike"


class Filled(Module):
    class Config(Module.Config["Filled"]):
        value: float = 0.0
        spread: float = 0.0

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self.same = parameter((4, 4), (None, None), ConstantInitializer.Config(value=config.value))
        self.random = parameter(
            (4, 4), (None, None), Normal.Config(standard_deviation=config.spread)
        )


def test_arrays_of_one_shape_begin_each_by_its_own_initializer() -> None:
    few, many = (
        initialize(Filled.Config(value=float(n), spread=float(n)).build(), KEY) for n in (1, 2)
    )
    assert (few["same"] == 1).all()
    assert (many["same"] == 2).all()
    np.testing.assert_allclose(many["random"], 2 * few["random"], rtol=1e-6)


def test_it_may_be_part_of_a_larger_program() -> None:
    model = Stack.Config(layer=Dense.Config(), num_layers=2).build()
    inside = jax.jit(lambda: initialize(model, jax.random.key(7)))()
    for path, value in initialize(model, jax.random.key(7)).items():
        np.testing.assert_array_equal(inside[path], value)


def test_the_mesh_does_not_matter() -> None:
    model = Stack.Config(layer=Dense.Config(width=16), num_layers=4).build()
    plain = initialize(model, KEY)
    mesh = jax.make_mesh((4, 2), ("data", "model"), axis_types=(AxisType.Auto,) * 2)
    shardings = {
        "layer/weight": NamedSharding(mesh, PartitionSpec(None, "data", "model")),
        "layer/bias": NamedSharding(mesh, PartitionSpec("data", "model")),
    }
    sharded = initialize(model, KEY, shardings)
    for path, value in plain.items():
        assert sharded[path].sharding == shardings[path]
        np.testing.assert_array_equal(np.asarray(value), np.asarray(sharded[path]))


def test_initializers_are_config_children() -> None:
    class Ramp(Component):
        def __call__(
            self, key: jax.Array, shape: tuple[int, ...], fan_in: int, fan_out: int
        ) -> jax.Array:
            return jnp.arange(shape[-1]) + 100.0 * fan_in + jnp.zeros(shape)

    params = initialize(Stack.Config(layer=Dense.Config(init=Ramp.Config())).build(), KEY)
    np.testing.assert_array_equal(params["layer/weight"][1, 0], [400, 401, 402, 403])
    np.testing.assert_array_equal(params["layer/bias"][2], [100, 101, 102, 103])


def spec(init, fan_in=(0,), fan_out=(1,)) -> ParameterSpec:
    return ParameterSpec((512, 128), (None, None), init.build(), fan_in=fan_in, fan_out=fan_out)


@pytest.mark.parametrize(
    ("init", "deviation"),
    [
        (Normal.Config(standard_deviation=0.5), 0.5),
        (VarianceScaling.Config(), 512**-0.5),
        (VarianceScaling.Config(fan="out", scale=2.0), (2 / 128) ** 0.5),
        (VarianceScaling.Config(fan="average"), 320**-0.5),
        (ConstantInitializer.Config(value=3.0), 0.0),
    ],
)
def test_the_spread_of_first_values(init, deviation: float) -> None:
    values = spec(init).initial(KEY, "path")
    np.testing.assert_allclose(values.std(), deviation, rtol=0.02)
    np.testing.assert_allclose(values.mean(), 3.0 if deviation == 0 else 0.0, atol=0.01)


def test_fans_leave_stacked_axes_out() -> None:
    single = spec(VarianceScaling.Config()).initial(KEY, "path").std()
    stacked = spec(VarianceScaling.Config()).stack(16, "layers", 0).initial(KEY, "path").std()
    np.testing.assert_allclose(single, stacked, rtol=0.02)


def test_stored_types() -> None:
    class Low(Module):
        def __init__(self, config: Module.Config) -> None:
            super().__init__(config)
            self.weight = parameter((2,), (None,), dtype="bfloat16")

    assert initialize(Low.Config().build(), KEY)["weight"].dtype == jnp.bfloat16
    variables = initialize_variables(Counter.Config().build(), KEY)
    assert variables["calls"].dtype == jnp.int32
    assert initialize_variables(Dense.Config().build(), KEY) == {}


def test_a_huge_model_is_described_without_an_array() -> None:
    import time

    class Wide(Module):
        def __init__(self, config: Module.Config) -> None:
            super().__init__(config)
            for i in range(8):
                setattr(self, f"w{i}", parameter((16384, 24576), ("embed", "mlp")))

    model = Stack.Config(layer=Wide.Config(), num_layers=126).build()
    start = time.perf_counter()
    specs = parameter_specs(model)
    shapes = {path: spec.struct() for path, spec in specs.items()}
    assert time.perf_counter() - start < 1.0
    assert sum(spec.size for spec in specs.values()) > 400e9
    assert shapes["layer/w0"].shape == (126, 16384, 24576)
