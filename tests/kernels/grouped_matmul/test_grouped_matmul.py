"""Grouped matmul: both implementations against a loop in NumPy; gradients, choice and sharding."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec

from dovetail.kernels import (
    SlowKernelError,
    choices,
    clear_choices,
    prefer,
    strict,
    target_platform,
)
from dovetail.kernels.grouped_matmul import grouped_matmul
from dovetail.kernels.grouped_matmul.blocked import block_rows
from dovetail.parallel import AxisRules, MeshLayout, Placement, use_placement

NAMES = ("reference", "blocked")
ROWS, GROUPS, IN, OUT = 100, 4, 6, 5
# Each fills up to the 100 rows, or leaves some over; blocks have 16 rows.
SIZES = {
    "uneven": [50, 3, 46, 1],
    "empty at the ends": [0, 37, 63, 0],
    "empty in the middle": [20, 0, 0, 17],
    "all in the first": [100, 0, 0, 0],
    "all in the last": [0, 0, 0, 99],
    "full blocks": [16, 32, 16, 32],
    "none": [0, 0, 0, 0],
}


def inputs_of(dtype: str = "float32") -> tuple[jax.Array, jax.Array]:
    """Returns random rows and matrices."""
    generator = np.random.default_rng(0)
    x = jnp.asarray(generator.standard_normal((ROWS, IN)), dtype)
    return x, jnp.asarray(generator.standard_normal((GROUPS, IN, OUT)), dtype)


def results_of(name: str) -> Callable[..., Any]:
    """Returns a function from inputs to the result, and the gradients of rows and matrices."""

    def compute(x: jax.Array, weight: jax.Array, sizes: jax.Array, gradient: jax.Array) -> Any:
        with prefer(grouped_matmul=name):
            result, pull = jax.vjp(lambda x, weight: grouped_matmul(x, weight, sizes), x, weight)
            return result, *pull(gradient.astype(result.dtype))

    return compute


def expected_of(x: Any, weight: Any, sizes: Any, gradient: Any) -> list[np.ndarray]:
    """Computes the same group by group."""
    x, weight, gradient = (np.asarray(array, np.float64) for array in (x, weight, gradient))
    result, by_x, by_weight = np.zeros((ROWS, OUT)), np.zeros_like(x), np.zeros_like(weight)
    start = 0
    for group, size in enumerate(sizes):
        rows = slice(start, start + size)
        result[rows] = x[rows] @ weight[group]
        by_x[rows] = gradient[rows] @ weight[group].T
        by_weight[group] = x[rows].T @ gradient[rows]
        start += size
    return [result, by_x, by_weight]


def gradient_of() -> np.ndarray:
    """Returns a gradient of the result."""
    return np.random.default_rng(1).standard_normal((ROWS, OUT)).astype(np.float32)


def assert_same(got: Any, expected: Any, tolerance: float = 1e-5) -> None:
    for one, other in zip(got, expected, strict=True):
        values = np.asarray(one, np.float32), np.asarray(other, np.float32)
        np.testing.assert_allclose(*values, rtol=tolerance, atol=10 * tolerance)


@pytest.mark.parametrize("name", NAMES)
def test_each_group_meets_its_own_matrix(name: str) -> None:
    x, weight = inputs_of()
    compute = jax.jit(results_of(name))  # one program for all sizes: they are an array
    for sizes in SIZES.values():
        got = compute(x, weight, jnp.asarray(sizes), gradient_of())
        assert_same(got, expected_of(x, weight, sizes, gradient_of()))


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("weight_dtype", ["bfloat16", "float32"])
def test_half_precision_sums_in_float32_and_keeps_dtypes(name: str, weight_dtype: str) -> None:
    x, weight = inputs_of("bfloat16")
    weight = weight.astype(weight_dtype)
    gradient = jnp.asarray(gradient_of(), "bfloat16")
    got = jax.jit(results_of(name))(x, weight, jnp.asarray(SIZES["uneven"]), gradient)
    assert [array.dtype.name for array in got] == ["bfloat16", "bfloat16", weight_dtype]
    expected = expected_of(x, weight, SIZES["uneven"], gradient)
    for one, other in zip(got, expected, strict=True):
        # One rounding at the end is all that is allowed: half of 2^-7, of each value itself.
        np.testing.assert_allclose(np.asarray(one, np.float32), other, rtol=0.005, atol=1e-5)


@pytest.mark.parametrize("name", NAMES)
def test_rows_in_no_group_may_hold_anything(name: str) -> None:
    x, weight = (np.array(array) for array in inputs_of())
    gradient = gradient_of()
    expected = expected_of(x, weight, SIZES["empty in the middle"], gradient)
    x[37:], gradient[37:] = np.nan, np.nan
    got = jax.jit(results_of(name))(x, weight, jnp.asarray(SIZES["empty in the middle"]), gradient)
    assert_same(got, expected)


def test_blocked_works_under_vmap_scan_and_checkpoint() -> None:
    x, weight = inputs_of()
    xs_2NE = jnp.stack([x, 2 * x])
    sizes = [SIZES["uneven"], SIZES["empty in the middle"]]
    sizes_2X = jnp.asarray(sizes)

    def layer(x: jax.Array, sizes: jax.Array) -> jax.Array:
        with prefer(grouped_matmul="blocked"):
            return grouped_matmul(x, weight, sizes)

    def scanned(xs_2NE: jax.Array) -> jax.Array:
        body = jax.checkpoint(lambda _, pair: (None, layer(*pair)))
        return jax.lax.scan(body, None, (xs_2NE, sizes_2X))[1]

    def mapped(xs_2NE: jax.Array) -> jax.Array:
        return jax.vmap(layer)(xs_2NE, sizes_2X)

    gradient = gradient_of()
    expected = [expected_of(xs_2NE[i], weight, sizes[i], gradient) for i in range(2)]
    for run in (scanned, mapped):

        def compute(xs_2NE: jax.Array, run: Callable[..., jax.Array] = run) -> Any:
            result, pull = jax.vjp(run, xs_2NE)
            return result, *pull(jnp.stack([gradient, gradient]))

        result, by_xs = jax.jit(compute)(xs_2NE)
        for i in range(2):
            assert_same((result[i], by_xs[i]), expected[i][:2])


def test_memory_does_not_grow_with_the_groups() -> None:
    def temporaries(name: str, groups: int) -> int:
        arrays = jnp.zeros((256, 8)), jnp.zeros((groups, 8, 8)), jnp.zeros(groups, jnp.int32)
        with prefer(grouped_matmul=name):
            compiled = jax.jit(grouped_matmul).lower(*arrays).compile()
        return compiled.memory_analysis().temp_size_in_bytes

    assert temporaries("reference", 32) > 4 * temporaries("reference", 4), "what it is there for"
    assert temporaries("blocked", 32) < 2 * temporaries("blocked", 4)


@pytest.mark.parametrize(
    ("rows", "groups", "block"),
    [(1, 8, 16), (100, 4, 16), (2048, 8, 128), (1024, 64, 16), (10**6, 8, 256)],
)
def test_blocks_follow_the_size_of_an_even_group(rows: int, groups: int, block: int) -> None:
    assert block_rows(rows, groups) == block


def chosen(x: jax.Array, weight: jax.Array) -> list[str]:
    """Returns the choice that the op reports for a call."""
    clear_choices()
    with strict(), warnings.catch_warnings():
        warnings.simplefilter("error")
        sizes = jnp.zeros(weight.shape[0], jnp.int32)
        result = jax.eval_shape(partial(grouped_matmul, group_sizes_X=sizes), x, weight)
    assert result.shape == (x.shape[0], weight.shape[2])
    return choices()


def placement_of(**sizes: int) -> Placement:
    """Returns a placement over all devices."""
    return Placement(MeshLayout.Config(**sizes).build().mesh(), AxisRules.Config().build())


def test_the_choice_follows_platform_groups_and_devices() -> None:
    x, weight = inputs_of()
    assert chosen(x, weight) == ["grouped_matmul: blocked (cpu)"]
    assert "one group needs no loop" in chosen(x, weight[:1])[0]
    assert "there are no rows" in chosen(x[:0], weight)[0]
    few = "megablox, because 100 rows on a device are fewer than a tile of 128"
    with target_platform("tpu"):
        assert chosen(x, weight[:1]) == [f"grouped_matmul: reference (tpu; not {few})"]
        with pytest.raises(SlowKernelError, match=f"slow 'reference'.*Not {few}"):
            chosen(x, weight)
    with target_platform("gpu"), pytest.raises(SlowKernelError, match="slow 'reference'"):
        chosen(x, weight)
    with use_placement(placement_of(data=8, fsdp=1)):
        assert (
            "reference (cpu; not blocked, because the rows may be sharded" in chosen(x, weight)[0]
        )


@pytest.mark.parametrize(("rows", "groups"), [(0, 4), (7, 1)])
def test_no_rows_and_one_group_are_no_special_cases(rows: int, groups: int) -> None:
    x, weight = inputs_of()
    sizes = jnp.full(groups, min(rows, 5))
    result = jax.jit(grouped_matmul)(x[:rows], weight[:groups], sizes)
    assert result.shape == (rows, OUT)
    np.testing.assert_allclose(result[:5], np.asarray(x[:rows] @ weight[0])[:5], atol=1e-5)
    assert not np.asarray(result[5:]).any()


def test_sharded_equals_unsharded() -> None:
    x, weight = inputs_of()
    x, gradient, sizes = x[:96], gradient_of()[:96], jnp.asarray([50, 3, 40, 0])
    placement = placement_of(data=4, fsdp=2)
    by_rows = placement.sharding(("batch", None))
    by_width = placement.sharding((None, "embed", None))

    def compute(*arrays: jax.Array) -> Any:
        x, weight, gradient = arrays
        result, pull = jax.vjp(lambda x, weight: grouped_matmul(x, weight, sizes), x, weight)
        return result, *pull(gradient)

    with use_placement(placement):
        arrays = [
            jax.device_put(*pair)
            for pair in ((x, by_rows), (weight, by_width), (gradient, by_rows))
        ]
        got = jax.jit(compute)(*arrays)
    padded = [np.pad(np.asarray(array), [(0, 4), (0, 0)]) for array in (x, gradient)]
    result, by_x, by_weight = expected_of(padded[0], weight, [50, 3, 40, 0], padded[1])
    assert_same(got, (result[:96], by_x[:96], by_weight))


def test_within_shard_map_each_device_runs_its_own_blocks() -> None:
    x, weight = inputs_of()
    placement = placement_of(data=8, fsdp=1)
    sizes = jnp.asarray([[3, 0, 5, 2]] * 8)
    rows = PartitionSpec("data")

    def local(x: jax.Array, weight: jax.Array, sizes: jax.Array) -> jax.Array:
        return grouped_matmul(x, weight, sizes[0])

    clear_choices()
    with use_placement(placement):
        run = jax.shard_map(
            local,
            mesh=placement.mesh,
            in_specs=(rows, PartitionSpec(), rows),
            out_specs=rows,
            check_vma=False,
        )
        result = np.asarray(jax.jit(run)(x[:80], weight, sizes))
    assert choices() == ["grouped_matmul: blocked (cpu)"]
    matrices = np.asarray(weight)[np.tile(np.repeat([0, 2, 3], [3, 5, 2]), 8)]
    np.testing.assert_allclose(
        result, np.einsum("ne,nef->nf", np.asarray(x[:80]), matrices), atol=1e-5
    )


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({0: jnp.zeros((ROWS, 7))}, r"x of \[rows, width\].* got \(100, 7\) and \(4, 6, 5\)"),
        ({1: jnp.zeros((IN, OUT))}, r"weight of \[groups, .* got \(100, 6\) and \(6, 5\)"),
        ({1: jnp.zeros((GROUPS, IN, OUT), int)}, r"weight_XEF of a floating dtype, got int32"),
        ({2: jnp.zeros(3, int)}, r"group_sizes_X of shape \(4,\) and integers, got \(3,\) int32"),
        ({2: jnp.zeros(4)}, r"group_sizes_X of shape \(4,\) and integers, got \(4,\) float32"),
    ],
)
def test_calls_that_make_no_sense_are_refused(changes: dict[int, Any], message: str) -> None:
    inputs = [*inputs_of(), jnp.asarray(SIZES["uneven"])]
    for place, array in changes.items():
        inputs[place] = array
    with pytest.raises(ValueError, match=r"^grouped_matmul: expected .*" + message):
        grouped_matmul(*inputs)
