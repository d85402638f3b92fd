"""Specs: shapes, axes and layer paths of everything, before any array exists."""

import time

import jax
import numpy as np
import pytest

from dovetail.config import ConfigOf, wraps
from dovetail.module import (
    ConstantInitializer,
    Module,
    ParameterSpec,
    functional,
    parameter_specs,
    repeated,
)
from tests.module.example_modules import X_BE, Chatty, Counter, Dense, LowRank, Sequence, Stack


def matrix(**attributes) -> ParameterSpec:
    return ParameterSpec(
        (2, 5), ("embed", "mlp"), ConstantInitializer.Config().build(), **attributes
    )


def test_stacking_adds_axes_in_front() -> None:
    spec = matrix(fan_in=(0,), fan_out=(1,), decays=False)
    stacked = spec.stack(3, "expert", 2).stack(4, "layers", 1)
    assert isinstance(stacked, ParameterSpec)
    assert stacked.shape == (4, 3, 2, 5)
    assert stacked.axes == ("layers", "expert", "embed", "mlp")
    assert (stacked.stacked, stacked.depths, stacked.layer_shape) == (2, (1, 2), (2, 5))
    assert (stacked.size, stacked.is_matrix, stacked.decays) == (120, True, False)
    assert stacked.struct() == jax.ShapeDtypeStruct((4, 3, 2, 5), np.float32)


def test_what_is_no_matrix() -> None:
    assert not matrix().is_matrix
    assert not matrix(fan_in=(0,)).is_matrix


def test_a_spec_must_make_sense() -> None:
    with pytest.raises(ValueError, match=r"\(2,\) has 1 axes, the names are \(\)"):
        ParameterSpec((2,), (), ConstantInitializer.Config().build())
    with pytest.raises(ValueError, match=r"fans name the axes \[2\].*\(2, 5\) has only 2"):
        matrix(fan_in=(2,))


def paths_of(model: Module) -> dict[str, list[str]]:
    return {path: spec.layer_paths(path) for path, spec in parameter_specs(model).items()}


def test_layer_paths_number_every_repeat() -> None:
    inner = Sequence.Config(parts={"a": Chatty.Config()})
    model = Stack.Config(layer=Stack.Config(layer=inner, num_layers=2), num_layers=2).build()
    assert paths_of(model) == {
        "layer/layer/parts/a/scale": [
            "layer/0/layer/0/parts/a/scale",
            "layer/0/layer/1/parts/a/scale",
            "layer/1/layer/0/parts/a/scale",
            "layer/1/layer/1/parts/a/scale",
        ]
    }
    assert paths_of(Chatty.Config().build()) == {"scale": ["scale"]}


class Copies(Module):
    """A wrapper that repeats what it wraps, so that the number follows its own path."""

    class Config(Module.Config["Copies"]):
        base: ConfigOf[Module] = wraps()
        count: int = 2

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self.base = repeated(config.base.build(), config.count)


def test_layer_paths_of_repeated_wrapped_children() -> None:
    assert paths_of(Copies.Config(base=Chatty.Config()).build()) == {
        "scale": ["0/scale", "1/scale"]
    }
    # Two repeats at one depth: the outer number comes first, and no two paths are the same.
    twice = Copies.Config(base=Copies.Config(base=Chatty.Config(), count=3)).build()
    numbers = [f"{i}/{j}" for i in range(2) for j in range(3)]
    assert paths_of(twice) == {"scale": [f"{number}/scale" for number in numbers]}


def test_specs_are_sorted_and_hold_no_arrays() -> None:
    model = Sequence.Config(parts={"b": LowRank.Config(base=Dense.Config()), "a": Counter.Config()})
    specs = parameter_specs(model.build())
    assert list(specs) == sorted(specs)
    assert all(isinstance(spec, ParameterSpec) for spec in specs.values())


def test_a_run_of_a_large_tree_starts_at_once() -> None:
    model = Sequence.Config(parts={f"p{i}": Dense.Config() for i in range(300)}).build()

    class Nothing(Sequence):
        def __call__(self, x: jax.Array) -> jax.Array:
            return x

    idle = Nothing.Config(parts=model.config.parts).build()
    start = time.perf_counter()
    for _ in range(10):
        functional(idle, {}, X_BE)
    assert (time.perf_counter() - start) / 10 < 0.05
