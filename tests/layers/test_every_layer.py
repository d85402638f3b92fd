"""What holds for every layer: see cases.py, where a new one is added."""

from __future__ import annotations

import functools
import re
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dovetail.config import Config, from_text, to_text, visit
from dovetail.generate import with_kv_cache
from dovetail.layers import TokenContext
from dovetail.layers.attention.scores import PositionalScores, SoftmaxFree
from dovetail.layers.linear.adapters import Adapter
from dovetail.layers.moe.losses import WeightedLoss
from dovetail.layers.norms import HasFinalNorm
from dovetail.module import Module, functional, parameter_specs, variable_specs
from dovetail.parallel import AxisRules, MeshLayout, Placement, use_placement
from tests.layers.cases import CASES, SEQUENCE, random_params

KEY = jax.random.key(0)


def mixes_tokens(config: Config[Any]) -> bool:
    """Returns whether a layer contains a cache."""
    return any("cache" in type(found).fields() for _, found in visit(config))


every_layer = pytest.mark.parametrize("name", CASES)
every_mixer = pytest.mark.parametrize(
    "name", [name for name, case in CASES.items() if mixes_tokens(case.config)]
)


@dataclass(frozen=True)
class Computed:
    """The output and gradients of one layer on one device."""

    module: Module
    params: Any
    arguments: Any
    result: Any
    gradients: Any


@functools.cache
def computed(name: str) -> Computed:
    case = CASES[name]
    module, arguments = case.config.build(), case.arguments()
    params = random_params(module)
    result, gradients = jax.jit(functools.partial(run_and_differentiate, module))(params, arguments)
    return Computed(module, params, arguments, result, gradients)


def test_no_layer_is_left_out() -> None:
    layers = {each for each in subclasses(Module) if each.__module__.startswith("dovetail.layers.")}
    swept = {type(found).builds() for case in CASES.values() for _, found in visit(case.config)}
    bases = {each for each in layers if re.match("Base|.*Wrapper$", each.__name__)}
    bases |= {Adapter, HasFinalNorm, PositionalScores, SoftmaxFree, WeightedLoss}
    # A loss is run in a model, by tests/models and tests/layers/loss.
    losses = {each for each in layers if each.__module__.startswith("dovetail.layers.loss.")}
    assert layers - swept - bases - losses == set()


def subclasses(base: type) -> set[type]:
    """Returns all classes that extend a class, at any distance."""
    return {found for child in base.__subclasses__() for found in {child, *subclasses(child)}}


@every_layer
def test_text_round_trip(name: str) -> None:
    assert from_text(to_text(CASES[name].config)) == CASES[name].config


@every_layer
def test_shape_and_type_are_known_without_running(name: str) -> None:
    one = computed(name)
    params = {path: spec.struct() for path, spec in parameter_specs(one.module).items()}
    promised = jax.eval_shape(functools.partial(run, one.module), params, one.arguments)
    assert jax.tree.map(shape_and_type, promised) == jax.tree.map(shape_and_type, one.result)
    assert all(leaf.dtype == jnp.float32 for leaf in one.result)
    assert all(np.isfinite(leaf).all() for leaf in one.result)


@every_layer
def test_gradients_reach_every_parameter(name: str) -> None:
    one = computed(name)
    specs = parameter_specs(one.module)
    assert set(one.gradients) == set(specs)
    for path, spec in specs.items():
        gradient = np.asarray(one.gradients[path])
        layers = gradient.reshape(*gradient.shape[: spec.stacked], -1)
        assert np.isfinite(gradient).all(), path
        assert (np.abs(layers).max(axis=-1) > 0).all(), f"{path}: some layer has no gradient"


@every_layer
def test_sharded_equals_unsharded(name: str) -> None:
    one = computed(name)
    mesh = MeshLayout.Config(data=2, fsdp=2, model=2).build().mesh()
    placement = Placement(mesh, AxisRules.Config().build())
    shardings = {
        path: placement.sharding(spec.axes, spec.shape, path)
        for path, spec in parameter_specs(one.module).items()
    }

    def sharded(params: Any, arguments: Any) -> Any:
        with use_placement(placement):
            return run_and_differentiate(one.module, params, arguments)

    batch = placement.sharding(("batch",))
    compute = jax.jit(sharded, in_shardings=(shardings, batch), out_shardings=(None, shardings))
    result, gradients = compute(one.params, one.arguments)
    assert all(len(leaf.sharding.device_set) == 8 for leaf in jax.tree.leaves(result))
    for sharded, unsharded in zip(result, one.result, strict=True):
        assert_close(sharded, unsharded)
    for path, gradient in gradients.items():
        assert_close(gradient, one.gradients[path])


@every_layer
def test_bfloat16(name: str) -> None:
    one = computed(name)
    module = CASES[name].config.clone(dtype="bfloat16").build()
    assert all(spec.dtype == "float32" for spec in parameter_specs(module).values())
    lowered = jax.tree.map(in_bfloat16, one.arguments)
    result = jax.jit(functools.partial(run, module))(one.params, lowered)
    for low, high in zip(result, one.result, strict=True):
        assert low.dtype == jnp.bfloat16
        difference = np.asarray(low, np.float32) - high
        assert np.sqrt(np.mean(difference**2)) < 0.02 * np.sqrt(np.mean(high**2))


@every_mixer
def test_step_by_step_equals_all_at_once(name: str) -> None:
    one = computed(name)
    module = with_kv_cache(CASES[name].config, SEQUENCE + 2).build()
    step = jax.jit(lambda *inputs, cache: functional(module, *inputs, cache=cache))
    x, context = one.arguments
    cache, start, results = None, 0, []
    for length in (3, 1, 1, 1):
        span = slice(start, start + length)
        here = TokenContext(context.positions_BS[:, span], context.segment_ids_BS[:, span])
        result, outputs = step(one.params, (x[:, span], here), cache=cache)
        results.append(result)
        cache, start = outputs.cache, start + length
    assert start == SEQUENCE
    assert_close(np.concatenate(results, axis=1), one.result[0])


def run(module: Module, params: Any, arguments: Any) -> list[jax.Array]:
    """Returns the arrays of numbers that a layer gives."""
    variables = {p: spec.initial(KEY, p) for p, spec in variable_specs(module).items()}
    leaves = jax.tree.leaves(functional(module, params, arguments, variables=variables)[0])
    return [leaf for leaf in leaves if is_floating(leaf)]


def run_and_differentiate(module: Module, params: Any, arguments: Any) -> Any:
    def measure(params: Any) -> tuple[jax.Array, Any]:
        """Reduces a result to one number on which all of it has an influence."""
        result = run(module, params, arguments)
        waves = [jnp.sin(jnp.arange(leaf.size)).reshape(leaf.shape) for leaf in result]
        return sum(map(jnp.vdot, result, waves), jnp.zeros(())), result

    gradients, result = jax.grad(measure, has_aux=True)(params)
    return result, gradients


def assert_close(actual: Any, expected: Any) -> None:
    """Compares with respect to the largest number: a sum of large ones may well be small."""
    size = np.abs(expected).max()
    np.testing.assert_allclose(actual / size, expected / size, rtol=0, atol=1e-5)


def is_floating(leaf: Any) -> bool:
    return hasattr(leaf, "dtype") and jnp.issubdtype(leaf.dtype, jnp.floating)


def in_bfloat16(leaf: jax.Array) -> jax.Array:
    return leaf.astype(jnp.bfloat16) if is_floating(leaf) else leaf


def shape_and_type(leaf: Any) -> Any:
    return leaf.shape, leaf.dtype
