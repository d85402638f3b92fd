"""Mixtures over devices: experts split over their own mesh axis give the same numbers."""

import re
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dovetail.config import Config, ConfigError, replace
from dovetail.layers.linear.adapters import LoRA
from dovetail.layers.linear.linear import Linear
from dovetail.layers.linear.quantized import Fp8Matmul
from dovetail.layers.moe import Capacity, Dropless
from dovetail.module import functional, parameter_specs
from dovetail.parallel import AxisRules, MeshLayout, Placement, use_placement
from tests.layers.cases import mixture, random_params, vectors

RULES = AxisRules.Config().build()
MESHES = {
    "experts": MeshLayout.Config(data=1, fsdp=1, expert=4, model=2),
    "experts and sequence": MeshLayout.Config(data=1, fsdp=2, expert=2, sequence=2),
    "no experts": MeshLayout.Config(data=2, fsdp=2, model=2),
}


def adapted() -> Config[Any]:
    return replace(mixture(), Linear, LoRA.Config(rank=3))


@pytest.mark.parametrize("mesh", MESHES)
def test_split_experts_in_eight_bits_are_finite(mesh: str) -> None:
    product = Fp8Matmul.Config()
    model = replace(mixture(), Linear, lambda old: old.clone(matmul=product)).build()
    placement = Placement(MESHES[mesh].build().mesh(), RULES)
    x = vectors(3, 4, 8, 16)

    def total(params: Any) -> Any:
        return jnp.sum(jnp.sin(functional(model, params, x)[0]))

    @jax.jit
    def split(params: Any) -> Any:
        with use_placement(placement):
            return jax.value_and_grad(total)(params)

    value, gradients = split(random_params(model))
    # A scale is the largest of those experts that are here, so numbers are not the same.
    assert all(np.isfinite(array).all() for array in jax.tree.leaves((value, gradients)))


@pytest.mark.parametrize("mesh", MESHES)
def test_sharded_experts_with_adapters_equal_unsharded_ones(mesh: str) -> None:
    check_split(adapted().build(), mesh)


@pytest.mark.parametrize("mesh", MESHES)
@pytest.mark.parametrize("dispatch", [Dropless.Config(), Capacity.Config(factor=0.5)])
def test_sharded_experts_equal_unsharded_ones(mesh: str, dispatch: Config[Any]) -> None:
    check_split(mixture().set(dispatch=dispatch).build(), mesh)


def check_split(model: Any, mesh: str) -> None:
    params, x = random_params(model), vectors(3, 4, 8, 16)
    placement = Placement(MESHES[mesh].build().mesh(), AxisRules.Config().build())

    def run(params: Any, x: jax.Array) -> Any:
        def total(params: Any) -> Any:
            result, outputs = functional(model, params, x, training=True, losses="return")
            losses = sum(loss.value() for loss in outputs.losses.values())
            return jnp.sum(jnp.sin(result)) + losses, result

        return jax.grad(total, has_aux=True)(params)

    def split(params: Any, x: jax.Array) -> Any:
        with use_placement(placement):
            return run(params, x)

    shardings = {
        path: placement.sharding(spec.axes, spec.shape, path)
        for path, spec in parameter_specs(model).items()
    }
    assert "fsdp" in shardings["gate/weight"].spec or "expert" in shardings["gate/weight"].spec
    batch = placement.sharding(("batch", "sequence"))
    gradients, result = jax.jit(
        split, in_shardings=(shardings, batch), out_shardings=(shardings, None)
    )(params, x)
    expected_gradients, expected = jax.jit(run)(params, x)
    size = max(1.0, float(jnp.abs(expected).max()))  # adapters of any size make large ones
    np.testing.assert_allclose(result, expected, atol=1e-5 * size)
    for path, gradient in expected_gradients.items():
        np.testing.assert_allclose(gradients[path], gradient, atol=1e-4 * size, err_msg=path)


@pytest.mark.parametrize("make", [mixture, adapted])
def test_gradients_of_experts_are_reduce_scattered(make: Any) -> None:
    model = make().build()
    placement = Placement(MeshLayout.Config(data=2, fsdp=4).build().mesh(), RULES)
    specs = parameter_specs(model)
    shardings = {path: placement.sharding(spec.axes, spec.shape) for path, spec in specs.items()}

    def total(params: Any, x: jax.Array) -> Any:
        with use_placement(placement):
            return jnp.sum(jnp.sin(functional(model, params, x)[0]))

    shapes = (
        {path: spec.struct() for path, spec in specs.items()},
        jax.ShapeDtypeStruct((8, 8, 16), jnp.float32),
    )
    inputs = (shardings, placement.sharding(("batch",)))
    gradient = jax.jit(jax.grad(total), in_shardings=inputs, out_shardings=shardings)
    text = gradient.lower(*shapes).compile().as_text()
    # XLA may join several in one.
    results = re.findall(r" = (.*) all-reduce\(", text)
    summed = {shape for result in results for shape in re.findall(r"f32\[[\d,]*\]", result)}
    whole = {_written(specs[path].shape) for path in ("gate/weight", "up/weight", "down/weight")}
    experts, width, hidden = specs["gate/weight"].shape
    parts = {_written((experts, width // 4, hidden)), _written((experts, hidden, width // 4))}
    assert not whole & summed
    assert parts <= summed, "over data"
    assert text.count(" reduce-scatter(") >= 3


@pytest.mark.parametrize("mesh", [{"data": 2, "fsdp": 4}, {"data": 2, "fsdp": 2, "model": 2}])
def test_what_is_gathered_does_not_wait_for_the_backward_pass(mesh: dict[str, int]) -> None:
    model = mixture().build()
    placement = Placement(MeshLayout.Config(**mesh).build().mesh(), RULES)
    specs = parameter_specs(model)

    @jax.jit
    def kept(params: Any, x: jax.Array) -> Any:
        with use_placement(placement):
            return jax.vjp(lambda params: functional(model, params, x)[0], params)[1]

    # Few tokens: an array with the size of a whole matrix on each of eight devices is one.
    x = jax.ShapeDtypeStruct((8, 1, 16), jnp.float32)
    waiting = jax.eval_shape(kept, {path: spec.struct() for path, spec in specs.items()}, x)
    sizes = [leaf.size for leaf in jax.tree.leaves(waiting)]
    assert max(sizes) == specs["gate/weight"].size


def _written(shape: tuple[int, ...]) -> str:
    return f"f32[{','.join(map(str, shape))}]"


def test_rows_beyond_the_capacity_are_dropped_and_counted() -> None:
    x = vectors(3, 4, 8, 16)
    placement = Placement(MESHES["experts"].build().mesh(), AxisRules.Config().build())

    def run(factor: float | None) -> tuple[Any, Any]:
        model = mixture().set(dispatch=Dropless.Config(capacity_factor=factor)).build()

        @jax.jit
        def call(params: Any) -> Any:
            with use_placement(placement):
                return functional(model, params, x, training=True, losses="discard")

        result, outputs = call(random_params(model))
        return np.asarray(result), outputs.summaries

    whole, _ = run(None)
    ample, summaries = run(4.0)
    np.testing.assert_array_equal(ample, whole)
    assert float(summaries["dropped"].value()) == 0
    tight, summaries = run(0.25)
    dropped = float(summaries["dropped"].value())
    assert 0.4 < dropped < 0.9, "a quarter of an even load, of a load that is not even"
    changed = np.any(np.abs(tight - whole) > 1e-6, axis=-1).mean()
    assert changed >= dropped


def test_capacity_factor_is_positive() -> None:
    with pytest.raises(ConfigError, match=r"capacity_factor: expected above 0, got 0\.0"):
        Dropless.Config(capacity_factor=0.0).build()
