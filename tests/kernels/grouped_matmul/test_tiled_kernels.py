"""Megablox and Triton, interpreted, against the reference: numerics, gradients, sharded rows."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dovetail.kernels import choices, clear_choices, interpreted, prefer, target_platform
from dovetail.kernels.grouped_matmul import grouped_matmul, grouped_matmul_op
from dovetail.kernels.grouped_matmul.shards import sizes_within
from dovetail.kernels.grouped_matmul.triton import tile_visits
from dovetail.parallel import AxisRules, MeshLayout, Placement, use_placement

PLATFORMS = {"megablox": "tpu", "triton": "gpu"}


def inputs_of(
    rows: int, widths: tuple[int, int], sizes: Sequence[int], dtype: str = "float32"
) -> tuple[jax.Array, ...]:
    """Returns rows, matrices, sizes and a gradient; rows in no group are NaN."""
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


def interpret(kernel: str, inputs: tuple[jax.Array, ...]) -> Any:
    with interpreted(PLATFORMS[kernel]), prefer(grouped_matmul=kernel):
        return jax.jit(compute)(*inputs)


SWEEP = pytest.mark.sweep


@pytest.mark.parametrize(
    ("kernel", "rows", "widths", "sizes", "dtype"),
    [
        ("megablox", 300, (6, 5), [50, 0, 96, 1], "float32"),
        ("megablox", 256, (16, 24), [0, 0, 0, 0], "bfloat16"),
        ("triton", 300, (16, 48), [50, 0, 96, 1], "float32"),
        ("triton", 256, (16, 32), [0, 0, 0, 0], "bfloat16"),
        pytest.param("megablox", 1024, (130, 96), [500, 0, 124, 400], "float32", marks=SWEEP),
        pytest.param("megablox", 1024, (256, 8), [0, 0, 0, 1000], "bfloat16", marks=SWEEP),
        pytest.param("megablox", 2000, (16, 300), [700, 800, 0, 500], "bfloat16", marks=SWEEP),
        pytest.param("megablox", 128, (1100, 2100), [1, 127], "float32", marks=SWEEP),
        pytest.param("triton", 1024, (144, 96), [500, 0, 124, 400], "float32", marks=SWEEP),
        pytest.param("triton", 1024, (256, 16), [0, 0, 0, 1000], "bfloat16", marks=SWEEP),
        pytest.param("triton", 2000, (16, 272), [700, 800, 0, 500], "bfloat16", marks=SWEEP),
        pytest.param("triton", 128, (272, 384), [1, 127], "float32", marks=SWEEP),
        pytest.param("triton", 512, (64, 64), [1] * 100 + [156], "float32", marks=SWEEP),
    ],
)
def test_it_agrees_with_the_reference(
    kernel: str, rows: int, widths: tuple[int, int], sizes: list[int], dtype: str
) -> None:
    inputs = inputs_of(rows, widths, sizes, dtype)
    got = interpret(kernel, inputs)
    assert_close(got, reference(inputs), {"float32": 5e-6, "bfloat16": 0.008}[dtype])


def placement_of(**sizes: int) -> Placement:
    return Placement(MeshLayout.Config(**sizes).build().mesh(), AxisRules.Config().build())


@pytest.mark.parametrize("kernel", PLATFORMS)
def test_sharded_rows_may_cut_through_groups(kernel: str) -> None:
    inputs = inputs_of(1024, (16, 32), [300, 0, 523, 101])
    placement = placement_of(data=2, fsdp=2, model=2)
    axes = (("batch", None), ("expert", "embed", "mlp"), (None,), ("batch", "mlp"))
    split = [
        jax.device_put(array, placement.sharding(names))
        for array, names in zip(inputs, axes, strict=True)
    ]
    with use_placement(placement):
        got = interpret(kernel, tuple(split))
    assert_close(got, reference(inputs), 1e-6)


def test_group_sizes_within_a_shard() -> None:
    sizes = jnp.asarray([3, 0, 5, 4])
    runs = [sizes_within(sizes, jnp.asarray(start), 5).tolist() for start in (0, 5, 10)]
    assert runs == [[3, 0, 2, 0], [0, 0, 3, 2], [0, 0, 0, 2]]


def test_a_tile_is_visited_once_for_each_group_that_has_rows_in_it() -> None:
    got = tile_visits(jnp.asarray([3, 0, 6, 1]), rows=12, tile=4)
    assert got.tile_T.tolist() == [0, 0, 1, 2, 2, 0], "three tiles, and one more for each group"
    assert got.group_T.tolist() == [0, 2, 2, 2, 3, 0]
    assert got.first_T.tolist() == [0, 3, 3, 3, 9, 0]
    assert got.stop_T.tolist() == [3, 9, 9, 9, 10, 0], "the last visit has nothing to do"


@pytest.mark.parametrize("kernel", PLATFORMS)
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
    kernel: str, rows: int, dtype: str, sizes: dict[str, int], reason: str
) -> None:
    call = inputs_of(rows, (16, 16), [1, 2], dtype)[:3]
    there = use_placement(placement_of(**sizes)) if sizes else nullcontext()
    with there:
        assert grouped_matmul_op.named(kernel).refusal(PLATFORMS[kernel], *call) == reason


def test_triton_multiplies_powers_of_two_of_one_type() -> None:
    triton = grouped_matmul_op.named("triton")
    x, weight, sizes, _ = inputs_of(256, (24, 32), [1, 2])
    assert triton.refusal("gpu", x, weight, sizes) == "a width of 24 is no multiple of 16"
    mixed = triton.refusal("gpu", x, weight.astype("bfloat16"), sizes)
    assert mixed == "it takes rows and matrices of one type, not float32 and bfloat16"


@pytest.mark.parametrize("kernel", PLATFORMS)
def test_its_platform_chooses_it(kernel: str) -> None:
    clear_choices()
    with target_platform(PLATFORMS[kernel]):
        jax.eval_shape(grouped_matmul, *inputs_of(256, (16, 16), [100, 2])[:3])
    assert choices() == [f"grouped_matmul: {kernel} ({PLATFORMS[kernel]})"]
