"""Blockwise attention against the reference: values, gradients, blocks, memory and sharding."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding, PartitionSpec

from dovetail.kernels import prefer
from dovetail.kernels.attention import Causal, Full, Mask, Prefix, SlidingWindow, attention
from dovetail.kernels.attention.xla import blockwise as blockwise_module
from dovetail.kernels.attention.xla.blockwise import QueryBlock, split_queries
from dovetail.parallel import MeshLayout
from tests.kernels.attention.cases import Arrays, aligned_call, arrays

Results = tuple[jax.Array, Arrays]


def run(name: str, inputs: Arrays, call: dict[str, Any]) -> Results:
    """Returns the output and all gradients of an implementation, compiled."""
    return jax.jit(results_of(name, call))(*inputs)


def results_of(name: str, call: dict[str, Any]) -> Callable[..., Results]:
    """Returns a function from inputs to output and gradients."""

    def compute(*inputs: jax.Array) -> Results:
        with prefer(attention=name):
            output, vjp = jax.vjp(lambda *inputs: attention(*inputs, **call), *inputs)
            return output, vjp(jnp.cos(output))

    return compute


def assert_same(got: Results, expected: Results, tolerance: float = 2e-5) -> None:
    """Compares outputs and gradients, and wants them finite."""
    for one, other in zip(jax.tree.leaves(got), jax.tree.leaves(expected), strict=True):
        # In NumPy: op by op, JAX would compile for every shape.
        values = np.asarray(one, np.float32), np.asarray(other, np.float32)
        assert np.isfinite(values[0]).all()
        np.testing.assert_allclose(*values, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize(
    ("mask", "length", "heads", "is_packed"),
    [
        (Causal(), 150, (4, 2), True),
        (Causal(), 131, (4, 1), False),
        (SlidingWindow(30), 150, (2, 2), True),
        (SlidingWindow(300), 128, (2, 1), False),
        (Full(), 128, (4, 2), True),
        (Causal() | Prefix(70), 128, (2, 1), False),
        (SlidingWindow(20) | (Causal() & Prefix(3)), 128, (2, 2), True),
    ],
    ids=str,
)
def test_it_agrees_with_the_reference(
    mask: Mask, length: int, heads: tuple[int, int], is_packed: bool
) -> None:
    inputs = arrays(2, length, length, *heads, 8)
    call = aligned_call(mask, 2, length, is_packed)
    assert_same(run("blockwise", inputs, call), run("reference", inputs, call))


def test_half_precision_agrees_within_its_precision() -> None:
    inputs = arrays(2, 128, 128, 4, 2, 16, "bfloat16")
    call = aligned_call(Causal(), 2, 128, is_packed=True)
    got = run("blockwise", inputs, call)
    expected = run("reference", tuple(np.asarray(array, np.float32) for array in inputs), call)
    assert all(array.dtype == jnp.bfloat16 for array in jax.tree.leaves(got))
    assert_same(got, expected, tolerance=0.03)


def test_fully_masked_queries_get_zeros_and_finite_gradients() -> None:
    inputs = arrays(2, 128, 128, 2, 2, 8)
    call = aligned_call(Causal(), 2, 128, is_packed=False)
    segments = jnp.asarray([[0] * 128, [1] * 100 + [0] * 28])
    call |= {"q_segment_ids_BS": segments, "kv_segment_ids_BT": segments}
    output, gradients = jax.tree.map(np.asarray, run("blockwise", inputs, call))
    for array in (output, *gradients):
        assert np.isfinite(array).all()
        assert not array[0].any()
        assert not array[1, 100:].any()
    assert output[1, :100].any()


def test_positions_that_restart_without_segments_still_hide_what_comes_later() -> None:
    inputs = arrays(1, 128, 128, 2, 2, 8)
    call = aligned_call(Causal(), 1, 128, is_packed=False)
    restarting = jnp.asarray([np.arange(128) % 50])
    call |= {"q_positions_BS": restarting, "kv_positions_BT": restarting}
    got = run("blockwise", inputs, call)
    assert_same(got, run("reference", inputs, call))
    changed = tuple(np.where(np.arange(128)[:, None, None] > 100, 9, array) for array in inputs)
    output = np.asarray(run("blockwise", changed, call)[0])
    np.testing.assert_array_equal(output[:, :101], np.asarray(got[0])[:, :101])


def test_more_keys_than_queries() -> None:
    inputs = arrays(2, 128, 260, 4, 2, 8)
    positions = jnp.asarray([np.arange(50, 178)] * 2)
    kv_positions = jnp.asarray([np.arange(260)] * 2)
    call = {"mask": SlidingWindow(90), "aligned": False}
    call |= {"q_positions_BS": positions, "kv_positions_BT": kv_positions}
    assert_same(run("blockwise", inputs, call), run("reference", inputs, call))


def test_a_bad_query_spoils_its_own_output_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    # Blocks wait for each other through data dependencies: these must not carry NaN over.
    monkeypatch.setattr(blockwise_module, "cpu_cores", lambda: 1)
    query, key, value = arrays(2, 192, 192, 2, 2, 8)
    call = aligned_call(Causal(), 2, 192, is_packed=False)
    bad = np.array(query)
    bad[0, 0] = np.nan
    compute = jax.jit(results_of("blockwise", call))
    got, expected = (jax.tree.map(np.asarray, compute(q, key, value)) for q in (bad, query))
    assert np.isnan(got[0][0, 0]).all()
    np.testing.assert_array_equal(got[0][0, 1:], expected[0][0, 1:])
    for one, other in zip(jax.tree.leaves(got), jax.tree.leaves(expected), strict=True):
        np.testing.assert_array_equal(one[1], other[1])


def test_blocks_have_only_the_keys_that_the_mask_can_allow() -> None:
    assert split_queries(512, 512, Causal(), aligned=True) == tuple(
        QueryBlock(start, start + 64, 0, start + 64) for start in range(0, 512, 64)
    )
    windowed = split_queries(512, 512, SlidingWindow(100), aligned=True)
    assert windowed[3] == QueryBlock(192, 256, 93, 256)
    assert {block.kv_stop for block in split_queries(512, 900, Causal(), aligned=False)} == {900}
    assert {block.kv_stop for block in split_queries(512, 512, Full(), aligned=True)} == {512}


@pytest.mark.parametrize("queries", [1, 64, 128, 129, 511, 1000, 2048, 4096, 5000, 131072])
def test_blocks_cover_all_queries_and_stay_few(queries: int) -> None:
    blocks = split_queries(queries, queries, Causal(), aligned=True)
    assert len(blocks) <= 16
    assert [block.start for block in blocks[1:]] == [block.stop for block in blocks[:-1]]
    assert (blocks[0].start, blocks[-1].stop) == (0, queries)
    assert all(block.stop > block.start for block in blocks)


def test_nothing_quadratic_is_saved_between_the_passes() -> None:
    inputs = arrays(1, 512, 512, 2, 2, 8)
    call = aligned_call(Causal(), 1, 512, is_packed=False)

    def residuals(*inputs: jax.Array) -> Any:
        with prefer(attention="blockwise"):
            return jax.vjp(lambda *inputs: attention(*inputs, **call), *inputs)[1]

    sizes = [leaf.size for leaf in jax.tree.leaves(jax.eval_shape(residuals, *inputs))]
    assert max(sizes) <= inputs[0].size


@pytest.mark.parametrize(("cores", "fraction"), [(1, 0.4), (64, 0.7)])
def test_it_needs_a_fraction_of_the_memory(
    monkeypatch: pytest.MonkeyPatch, cores: int, fraction: float
) -> None:
    # Blocks in flight follow the cores of the machine; the test must not.
    monkeypatch.setattr(blockwise_module, "cpu_cores", lambda: cores)
    inputs = arrays(1, 256, 256, 2, 2, 8)
    call = aligned_call(Causal(), 1, 256, is_packed=True)
    temporary = {
        name: jax.jit(results_of(name, call))
        .lower(*inputs)
        .compile()
        .memory_analysis()
        .temp_size_in_bytes
        for name in ("reference", "blockwise")
    }
    assert temporary["blockwise"] < fraction * temporary["reference"]


def test_a_policy_that_saves_the_output_spares_a_second_forward_pass() -> None:
    inputs = arrays(1, 256, 256, 2, 2, 8)
    call = aligned_call(Causal(), 1, 256, is_packed=False)

    def matmuls(policy: Any) -> int:
        layer = jax.checkpoint(lambda *inputs: attention(*inputs, **call), policy=policy)
        loss = jax.grad(lambda *inputs: layer(*inputs).sum(), (0, 1, 2))
        return str(jax.make_jaxpr(loss)(*inputs)).count("dot_general[")

    blocks = len(split_queries(256, 256, Causal(), aligned=True))
    policies = jax.checkpoint_policies
    assert matmuls(policies.save_only_these_names("attention_output")) == (2 + 5) * blocks
    assert matmuls(policies.nothing_saveable) == (2 + 2 + 5) * blocks


def test_sharded_equals_unsharded() -> None:
    inputs = arrays(4, 128, 128, 4, 2, 8)
    call = aligned_call(Causal(), 4, 128, is_packed=True)
    mesh = MeshLayout.Config(data=2, fsdp=2, model=2).build().mesh()
    by_head = NamedSharding(mesh, PartitionSpec(("data", "fsdp"), None, "model"))
    placed = tuple(jax.device_put(array, by_head) for array in inputs)
    compiled = jax.jit(results_of("blockwise", call)).lower(*placed).compile()
    assert_same(compiled(*placed), run("blockwise", inputs, call))
    assert "all-" not in compiled.as_text(), "batch and heads need no communication"
