"""Megablox, interpreted, against the reference: numbers, gradients, rows split over devices."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dovetail.kernels import choices, forget_choices, interpreted, prefer, target_platform
from dovetail.kernels.grouped_matmul import grouped_matmul, grouped_matmul_op
from dovetail.kernels.grouped_matmul.megablox import sizes_within
from dovetail.parallel import AxisRules, MeshLayout, Placement, placed


def inputs_of(
    rows: int, widths: tuple[int, int], sizes: Sequence[int], dtype: str = "float32"
) -> tuple[jax.Array, ...]:
    """Returns rows, matrices, sizes and a gradient; what is in no group is not a number."""
    generator = np.random.default_rng(rows)
    x = generator.standard_normal((rows, widths[0]))
    weight = generator.standard_normal((len(sizes), *widths))
    gradient = generator.standard_normal((rows, widths[1]))
    x[sum(sizes) :], gradient[sum(sizes) :] = np.nan, np.nan
    made = (jnp.asarray(array, dtype) for array in (x, weight, gradient))
    x, weight, gradient = made
    return x, weight, jnp.asarray(sizes), gradient


def compute(x: Any, weight: Any, sizes: Any, gradient: Any) -> Any:
    """Returns the result, and the gradients of rows and matrices."""
    result, pull = jax.vjp(lambda x, weight: grouped_matmul(x, weight, sizes), x, weight)
    return result, *pull(gradient)


def reference(inputs: tuple[jax.Array, ...]) -> Any:
    with prefer(grouped_matmul="reference"):
        return jax.jit(compute)(*inputs)


def assert_close(got: Any, expected: Any, tolerance: float) -> None:
    for one, other in zip(got, expected, strict=True):
        assert one.dtype == other.dtype
        one, other = np.asarray(one, np.float32), np.asarray(other, np.float32)
        scale = max(1.0, float(np.abs(other).max()))
        np.testing.assert_allclose(one, other, rtol=0, atol=tolerance * scale)


@pytest.mark.parametrize(
    ("rows", "widths", "sizes", "dtype"),
    [
        (300, (6, 5), [50, 0, 96, 1], "float32"),
        (256, (16, 24), [0, 0, 0, 0], "bfloat16"),
        pytest.param(1024, (130, 96), [500, 0, 124, 400], "float32", marks=pytest.mark.sweep),
        pytest.param(1024, (256, 8), [0, 0, 0, 1000], "bfloat16", marks=pytest.mark.sweep),
        pytest.param(2000, (16, 300), [700, 800, 0, 500], "bfloat16", marks=pytest.mark.sweep),
        pytest.param(128, (1100, 2100), [1, 127], "float32", marks=pytest.mark.sweep),
    ],
)
def test_it_agrees_with_the_reference(
    rows: int, widths: tuple[int, int], sizes: list[int], dtype: str
) -> None:
    inputs = inputs_of(rows, widths, sizes, dtype)
    with interpreted("tpu"), prefer(grouped_matmul="megablox"):
        got = jax.jit(compute)(*inputs)
    assert_close(got, reference(inputs), {"float32": 5e-6, "bfloat16": 0.008}[dtype])


def placement_of(**sizes: int) -> Placement:
    return Placement(MeshLayout.Config(**sizes).build().mesh(), AxisRules.Config().build())


def test_rows_split_over_devices_wherever_that_cuts_through_groups() -> None:
    inputs = inputs_of(1024, (16, 8), [300, 0, 523, 101])
    placement = placement_of(data=2, fsdp=2, model=2)
    axes = (("batch", None), ("expert", "embed", "mlp"), (None,), ("batch", "mlp"))
    split = [
        jax.device_put(array, placement.sharding(names))
        for array, names in zip(inputs, axes, strict=True)
    ]
    with interpreted("tpu"), prefer(grouped_matmul="megablox"), placed(placement):
        got = jax.jit(compute)(*split)
    assert_close(got, reference(inputs), 1e-6)


def test_the_sizes_within_a_run_of_rows() -> None:
    sizes = jnp.asarray([3, 0, 5, 4])
    runs = [sizes_within(sizes, jnp.asarray(start), 5).tolist() for start in (0, 5, 10)]
    assert runs == [[3, 0, 2, 0], [0, 0, 3, 2], [0, 0, 0, 2]]


@pytest.mark.parametrize(
    ("rows", "dtype", "sizes", "reason"),
    [
        (100, "float32", {}, "100 rows on a device are fewer than a tile of 128"),
        (512, "float32", {"fsdp": 8}, "64 rows on a device are fewer than a tile of 128"),
        (2044, "float32", {"fsdp": 8}, "2044 rows do not divide over 8 devices"),
        (128, "float16", {}, "it takes float32 or bfloat16, not float16"),
    ],
)
def test_every_refusal_has_a_reason(
    rows: int, dtype: str, sizes: dict[str, int], reason: str
) -> None:
    x, weight, *rest = inputs_of(rows, (8, 8), [1, 2], dtype)
    there = placed(placement_of(**sizes)) if sizes else nullcontext()
    with there:
        assert grouped_matmul_op.named("megablox").refusal("tpu", x, weight, rest[0]) == reason


def test_it_is_what_a_tpu_runs() -> None:
    forget_choices()
    with target_platform("tpu"):
        jax.eval_shape(grouped_matmul, *inputs_of(256, (8, 8), [100, 2])[:3])
    assert choices() == ["grouped_matmul: megablox (tpu)"]
