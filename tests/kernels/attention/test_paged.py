"""Paged keys and values: random block tables against contiguous attention."""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dovetail.kernels import choices, clear_choices
from dovetail.kernels.attention import (
    Causal,
    Full,
    Mask,
    SlidingWindow,
    SoftCap,
    attention,
    attention_op,
)
from dovetail.parallel import AxisRules, MeshLayout, Placement, use_placement
from tests.kernels.attention.biases import BucketBias, Slope
from tests.kernels.attention.cases import arrays, record

POOL, BLOCK, BLOCKS = 23, 4, 6
LENGTHS = np.asarray([1, 7, 16, 24])  # tokens of each row: blocks that are begun, and full ones
ROWS, KEYS = len(LENGTHS), BLOCK * BLOCKS
TABLE = BucketBias(jnp.asarray(np.random.default_rng(5).standard_normal((6, 4)), jnp.float32))


def random_table() -> np.ndarray:
    """Returns a block table that allocates just the blocks of each row, in random order."""
    generator = np.random.default_rng(1)
    free = list(generator.permutation(POOL))
    table = np.full((ROWS, BLOCKS), -1, np.int32)
    for row, length in enumerate(LENGTHS):
        for block in range(-(-length // BLOCK)):
            table[row, block] = free.pop()
    return table


def to_pool(x_BTKD: jax.Array, table: np.ndarray, leftover: float) -> jax.Array:
    """Returns a pool with the rows' written tokens in their blocks, and leftovers elsewhere."""
    rows = np.asarray(x_BTKD)
    pool = np.full((POOL, BLOCK, *rows.shape[2:]), leftover, rows.dtype)
    for row, length in enumerate(LENGTHS):
        for position in range(length):
            pool[table[row, position // BLOCK], position % BLOCK] = rows[row, position]
    return jnp.asarray(pool)


def last_positions(queries: int) -> jax.Array:
    """Returns the positions of the last queries of each row; those before its start are padding."""
    return jnp.asarray(LENGTHS[:, None] - queries + np.arange(queries), jnp.int32)


def calls(queries: int, mask: Mask) -> tuple[dict[str, Any], dict[str, Any]]:
    """Returns the arguments that a paged and a contiguous call share, and the latter's own."""
    positions = last_positions(queries)
    shared = {"mask": mask, "aligned": False, "q_positions_BS": positions}
    shared["q_segment_ids_BS"] = jnp.where(positions < 0, 0, 1)
    slots = jnp.broadcast_to(jnp.arange(KEYS), (ROWS, KEYS))
    written = slots < LENGTHS[:, None]
    return shared, {"kv_positions_BT": slots, "kv_segment_ids_BT": written.astype(jnp.int32)}


@pytest.mark.parametrize(
    ("queries", "mask", "heads", "options"),
    [
        (1, Causal(), (4, 4), {}),
        (1, Causal(), (4, 2), {"score_map": SoftCap(1.5)}),
        (3, SlidingWindow(5), (4, 1), {"sinks_H": jnp.asarray([0.7, -1.5, 3.0, 0.0])}),
        (3, Causal(), (4, 2), {"score_bias": TABLE}),
        (1, SlidingWindow(9), (4, 2), {"score_bias": Slope(), "score_map": SoftCap(2.0)}),
        (2, Causal(), (4, 2), {"score_activation": SoftCap(3.0)}),
        (130, Causal(), (4, 2), {"scale": 0.5}),
    ],
    ids=["plain", "GQA, cap", "window, sinks", "learned bias", "bias, cap", "no softmax", "chunk"],
)
def test_it_equals_contiguous_attention(
    queries: int, mask: Mask, heads: tuple[int, int], options: dict[str, Any]
) -> None:
    query, key, value = arrays(ROWS, queries, KEYS, *heads, 8, value_width=6)
    shared, own = calls(queries, mask)
    table = random_table()
    pools = [to_pool(array, table, leftover=np.nan) for array in (key, value)]
    paged = {**shared, **options, "block_table_BN": jnp.asarray(table)}
    got = jax.jit(partial(attention, **paged))(query, *pools)
    expected = jax.jit(partial(attention, **shared, **own, **options))(query, key, value)
    assert got.shape == (ROWS, queries, heads[0], 6)
    np.testing.assert_allclose(got, expected, atol=5e-6)
    assert not np.asarray(got)[np.asarray(last_positions(queries)) < 0].any()


@pytest.mark.parametrize("entry", [-1, -POOL, POOL, 2**31 - 1])
def test_blocks_that_are_not_allocated_are_never_attended_to(entry: int) -> None:
    """Also not where the mask allows it, and not those in the middle of a row."""
    query, *pools = arrays(POOL, 1, BLOCK, 4, 2, 8)
    query, table = query[:ROWS], random_table()
    table[3, [0, 2]] = -1
    is_allocated = np.repeat(table >= 0, BLOCK, axis=1)
    rows = [np.asarray(pool)[table].reshape(ROWS, KEYS, 2, 8) for pool in pools]
    key, value = (jnp.where(is_allocated[..., None, None], row, 1e3) for row in rows)
    shared, own = calls(1, Full())
    own["kv_segment_ids_BT"] = jnp.asarray(is_allocated, jnp.int32)
    block_table = jnp.asarray(np.where(table < 0, entry, table))
    got = attention(query, *pools, **shared, block_table_BN=block_table)
    np.testing.assert_allclose(got, attention(query, key, value, **shared, **own), atol=1e-6)


def test_a_row_without_blocks_gets_zeros() -> None:
    query, key, value = arrays(ROWS, 1, KEYS, 4, 2, 8)
    table = random_table()
    pools = [to_pool(array, table, np.nan) for array in (key, value)]
    table[1] = -1
    shared, _ = calls(1, Causal())
    got = attention(query, *pools, **shared, block_table_BN=jnp.asarray(table))
    assert np.isfinite(got).all()
    assert not got[1].any()
    assert got[2].any()


@pytest.mark.parametrize("queries", [2, 130], ids=["few", "chunk"])
def test_gradients_reach_the_blocks_of_the_pool(queries: int) -> None:
    query, key, value = arrays(ROWS, queries, KEYS, 4, 2, 8)
    table = random_table()
    shared, own = calls(queries, Causal())

    def gradients(options: dict[str, Any], *inputs: jax.Array) -> Any:
        return jax.grad(lambda *a: jnp.sin(attention(*a, **shared, **options)).sum(), (0, 1, 2))(
            *inputs
        )

    pools = [to_pool(array, table, leftover=np.nan) for array in (key, value)]
    got = gradients({"block_table_BN": jnp.asarray(table)}, query, *pools)
    dq, dk, dv = gradients(own, query, key, value)
    np.testing.assert_allclose(got[0], dq, atol=1e-5)
    for one, expected in zip(got[1:], (dk, dv), strict=True):
        np.testing.assert_allclose(one, to_pool(expected, table, 0.0), atol=1e-5)
        assert np.asarray(one).any()


def test_sharded_equals_unsharded() -> None:
    query, key, value = arrays(ROWS, 1, KEYS, 4, 2, 8)
    table = random_table()
    pools = [to_pool(array, table, 0.0) for array in (key, value)]
    shared, _ = calls(1, Causal())

    def run(*inputs: jax.Array) -> jax.Array:
        return attention(*inputs, **shared, block_table_BN=jnp.asarray(table))

    expected = run(query, *pools)
    placement = Placement(
        MeshLayout.Config(data=2, fsdp=2, model=2).build().mesh(), AxisRules.Config().build()
    )
    queries = placement.sharding(("batch", None, "heads", None))
    blocks = placement.sharding((None, None, "kv_heads", None))
    with use_placement(placement):
        got = jax.jit(run, in_shardings=(queries, blocks, blocks))(query, *pools)
    np.testing.assert_allclose(got, expected, atol=1e-6)


def test_the_choice_is_recorded_and_a_chunk_runs_blockwise() -> None:
    table = jnp.asarray(random_table())
    for queries, lines in (
        (1, ["decode_attention: reference (cpu)"]),
        (130, ["decode_attention: reference (cpu)", "attention: blockwise (cpu)"]),
    ):
        clear_choices()
        shared, _ = calls(queries, Causal())
        pool = jnp.zeros((POOL, BLOCK, 2, 8))
        query = jnp.zeros((ROWS, queries, 4, 8))
        call = partial(attention, **shared, block_table_BN=table)
        jax.eval_shape(call, query, pool, pool)
        assert choices() == lines


@pytest.mark.parametrize("aligned", [False, True])
def test_the_implementations_for_training_refuse_a_block_table(aligned: bool) -> None:
    shared, own = calls(128, Causal())
    pool = jnp.zeros((POOL, BLOCK, 4, 16), jnp.bfloat16)
    inputs = jnp.zeros((ROWS, 128, 4, 16), jnp.bfloat16), pool, pool
    paged = {"block_table_BN": jnp.asarray(random_table()), "aligned": aligned}
    call = record(inputs, {**shared, **own, **paged})
    for one in attention_op.implementations:
        for platform in one.platforms or ("cpu", "tpu", "gpu"):
            assert one.refusal(platform, call) is not None, one.name
    refused = pytest.raises(ValueError, match="Not reference, because keys and values are paged")
    with refused:
        attention_op(call)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"block_table_BN": jnp.zeros((3, 6), int)}, r"block_table_BN of shape \(4, blocks .*3, 6"),
        ({"block_table_BN": jnp.zeros(4, int)}, r"block_table_BN of shape .*got \(4,\) int32"),
        ({"block_table_BN": jnp.zeros((4, 6))}, r"and integers, got \(4, 6\) float32"),
        ({"aligned": True}, r"aligned=False with a block table, got aligned=True"),
        ({"kv_positions_BT": jnp.zeros((4, 24), int)}, r"no kv_positions_BT .* got some"),
        ({"q_positions_BS": jnp.zeros((4, 2), int)}, r"q_positions_BS of shape \(4, 1\)"),
        ({"block_table_BN": None}, r"kv_positions_BT, since there is no block table, got None"),
        ({"k": (POOL, BLOCK, 8)}, r"a pool of keys \[blocks, block size, KV heads, width\], got"),
        ({"k": (0, BLOCK, 2, 8)}, r"a pool of keys .*got \(0, 4, 2, 8\)"),
        ({"k": (POOL, BLOCK, 2, 5)}, r"k with the width of q.*k \(23, 4, 2, 5\)"),
        ({"v": (POOL, 3, 2, 8)}, r"k and v of one shape but for the width, got .*\(23, 3, 2, 8\)"),
        ({"k": (POOL, BLOCK, 3, 8), "v": (POOL, BLOCK, 3, 8)}, r"KV heads, got 4 and 3"),
    ],
)
def test_calls_that_make_no_sense_are_refused(changes: dict[str, Any], message: str) -> None:
    pools = [jnp.zeros(changes.pop(name, (POOL, BLOCK, 2, 8))) for name in "kv"]
    shared, _ = calls(1, Causal())
    call = {**shared, "block_table_BN": jnp.asarray(random_table()), **changes}
    with pytest.raises(ValueError, match=r"^attention: expected .*" + message):
        attention(jnp.zeros((ROWS, 1, 4, 8)), *pools, **call)
