"""Flash attention over ranges, in three Pallas kernels for TPUs: outputs, and both gradients.

Scores stand with keys along rows and queries along columns: what belongs to a query (its range, its
highest score, its sum) is one row of numbers, which is how a TPU likes to have them. Outputs and
the gradients of queries come out that way, too, and are turned by XLA.

B batch, S queries, T keys, H heads, K key-value heads, D width of queries and keys, W of values, M
and N queries and keys of a block, Q and C how many blocks there are of each.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from dovetail.kernels.attention.flash import Rows
from dovetail.kernels.attention.ranges import Ranges
from dovetail.kernels.attention.scores import LOW, mapped
from dovetail.kernels.attention.tpu_grid import ByKeys, ByQueries, call, ends_of
from dovetail.kernels.score_maps import ScoreMap


class How(NamedTuple):
    """What is known of a call before any array; hashable.

    Attributes:
        scale: what scores are multiplied with.
        score_map: what is done to them then.
        block: how many queries or keys are a block.
        interpret: whether kernels are run step by step.
    """

    scale: float
    score_map: ScoreMap | None
    block: int
    interpret: bool


def forward(
    how: How, query_BSHD: jax.Array, key_BTKD: jax.Array, value_BTKW: jax.Array, seen: Ranges
) -> tuple[jax.Array, jax.Array]:
    """Returns the output, and the logarithm of each row's sum as [B, H, S], both in float32."""
    batch, length, heads, _ = query_BSHD.shape
    width, size = value_BTKW.shape[3], how.block
    at = ByQueries(how.block, heads // key_BTKD.shape[2])
    mixed_BHWS, log_BH1S = call(
        functools.partial(_forward_kernel, how),
        name="ranged_forward",
        interpret=how.interpret,
        grid=(batch, heads, length // size, key_BTKD.shape[1] // size),
        ends=ends_of(seen, size),
        arrays=[
            (at.query, query_BSHD.swapaxes(1, 2)),
            (at.key, key_BTKD.swapaxes(1, 2)),
            (at.key, value_BTKW.swapaxes(1, 2)),
            *((at.token, array_BS[:, None]) for array_BS in seen),
        ],
        results=[
            (at.turned, (batch, heads, width, length)),
            (at.row, (batch, heads, 1, length)),
        ],
        scratch=[(width, size), (1, size), (1, size)],
    )
    return mixed_BHWS.transpose(0, 3, 1, 2), log_BH1S[:, :, 0]


def query_gradients(
    how: How,
    query_BSHD: jax.Array,
    key_BTKD: jax.Array,
    value_BTKW: jax.Array,
    seen: Ranges,
    rows: Rows,
) -> jax.Array:
    """Returns the gradient of the queries in float32."""
    batch, length, heads, width = query_BSHD.shape
    at = ByQueries(how.block, heads // key_BTKD.shape[2])
    [to_query_BHDS] = call(
        functools.partial(_query_kernel, how),
        name="ranged_queries",
        interpret=how.interpret,
        grid=(batch, heads, length // how.block, key_BTKD.shape[1] // how.block),
        ends=ends_of(seen, how.block),
        arrays=_backward_arrays(at, query_BSHD, key_BTKD, value_BTKW, seen, rows),
        results=[(at.turned, (batch, heads, width, length))],
        scratch=[(width, how.block)],
    )
    turned: jax.Array = to_query_BHDS.transpose(0, 3, 1, 2)
    return turned


def key_gradients(
    how: How,
    query_BSHD: jax.Array,
    key_BTKD: jax.Array,
    value_BTKW: jax.Array,
    seen: Ranges,
    seeing: Ranges,
    rows: Rows,
) -> tuple[jax.Array, jax.Array]:
    """Returns the gradients of keys and values in float32.

    Args:
        how: what is known before.
        query_BSHD: the queries.
        key_BTKD: the keys.
        value_BTKW: the values.
        seen: which keys each query sees.
        seeing: which queries see each key: the same, by which blocks are skipped.
        rows: what is known of each query's output.
    """
    batch, length, kv_heads, width = key_BTKD.shape
    shared = query_BSHD.shape[2] // kv_heads
    at = ByKeys(how.block, shared)
    to_key_BKTD, to_value_BKTW = call(
        functools.partial(_key_kernel, how),
        name="ranged_keys",
        interpret=how.interpret,
        grid=(batch, kv_heads, length // how.block, shared, query_BSHD.shape[1] // how.block),
        ends=ends_of(seeing, how.block),
        arrays=_backward_arrays(at, query_BSHD, key_BTKD, value_BTKW, seen, rows),
        results=[
            (at.key, (batch, kv_heads, length, width)),
            (at.key, (batch, kv_heads, length, value_BTKW.shape[3])),
        ],
        scratch=[(how.block, width), (how.block, value_BTKW.shape[3])],
    )
    return to_key_BKTD.swapaxes(1, 2), to_value_BKTW.swapaxes(1, 2)


class _Given(NamedTuple):
    """What a kernel of the backward pass is given, a block of each."""

    query_MD: Any
    key_ND: Any
    value_NW: Any
    start_1M: Any
    stop_1M: Any
    gradient_MW: Any
    log_1M: Any
    mean_1M: Any


def _backward_arrays(
    at: ByQueries | ByKeys,
    query: jax.Array,
    key: jax.Array,
    value: jax.Array,
    seen: Ranges,
    rows: Rows,
) -> list[Any]:
    return [
        (at.query, query.swapaxes(1, 2)),
        (at.key, key.swapaxes(1, 2)),
        (at.key, value.swapaxes(1, 2)),
        *((at.token, array_BS[:, None]) for array_BS in seen),
        (at.query, rows.gradient_BSHW.swapaxes(1, 2)),
        (at.row, rows.log_BHS[:, :, None]),
        (at.row, rows.mean_BHS[:, :, None]),
    ]


def _forward_kernel(
    how: How,
    first_BQ: Any,
    last_BQ: Any,
    query_MD: Any,
    key_ND: Any,
    value_NW: Any,
    start_1M: Any,
    stop_1M: Any,
    mixed_WM: Any,
    log_1M: Any,
    sum_WM: Any,
    highest_1M: Any,
    total_1M: Any,
) -> None:
    """Adds what one block of queries makes of one block of keys."""
    turn, turns = _turn(3)

    @_when(turn == 0)
    def begin() -> None:
        sum_WM[...] = jnp.zeros(sum_WM.shape, jnp.float32)
        highest_1M[...] = jnp.full(highest_1M.shape, LOW, jnp.float32)
        total_1M[...] = jnp.zeros(total_1M.shape, jnp.float32)

    @_when(_is_within(turn, first_BQ, last_BQ))
    def compute() -> None:
        key, value = key_ND[0, 0], value_NW[0, 0]
        score_NM, _ = mapped(how.score_map, _rows_with_rows(key, query_MD[0, 0]) * how.scale)
        score_NM = jnp.where(_visible(how, turn, start_1M, stop_1M), score_NM, LOW)
        before_1M = highest_1M[...]
        now_1M = jnp.maximum(before_1M, score_NM.max(axis=0, keepdims=True))
        # What a block of nothing but LOW adds is forgotten with the first key that is seen.
        weight_NM, kept_1M = jnp.exp(score_NM - now_1M), jnp.exp(before_1M - now_1M)
        added_WM = _columns_with_columns(value, weight_NM.astype(value.dtype))
        sum_WM[...] = sum_WM[...] * kept_1M + added_WM
        total_1M[...] = total_1M[...] * kept_1M + weight_NM.sum(axis=0, keepdims=True)
        highest_1M[...] = now_1M

    @_when(turn == turns - 1)
    def end() -> None:
        total = total_1M[...]
        total = jnp.where(total == 0, 1, total)  # a query may see none of these keys
        mixed_WM[0, 0] = sum_WM[...] / total
        log_1M[0, 0] = highest_1M[...] + jnp.log(total)


def _query_kernel(how: How, first_BQ: Any, last_BQ: Any, *arrays: Any) -> None:
    """Adds what one block of keys gives to the gradient of one block of queries."""
    given, (to_query_DM, sum_DM) = _Given(*arrays[:8]), arrays[8:]
    turn, turns = _turn(3)

    @_when(turn == 0)
    def begin() -> None:
        sum_DM[...] = jnp.zeros(sum_DM.shape, jnp.float32)

    @_when(_is_within(turn, first_BQ, last_BQ))
    def compute() -> None:
        key = given.key_ND[0, 0]
        _, to_score_NM = _score_gradients(how, turn, given)
        sum_DM[...] += _columns_with_columns(key, to_score_NM.astype(key.dtype))

    @_when(turn == turns - 1)
    def end() -> None:
        to_query_DM[0, 0] = sum_DM[...]


def _key_kernel(how: How, first_BC: Any, last_BC: Any, *arrays: Any) -> None:
    """Adds what one block of one head's queries gives to the gradients of one block of keys."""
    given, (to_key_ND, to_value_NW, sum_ND, sum_NW) = _Given(*arrays[:8]), arrays[8:]
    (head, heads), (turn, turns), number = _turn(3), _turn(4), _number(2)

    @_when((head == 0) & (turn == 0))
    def begin() -> None:
        sum_ND[...] = jnp.zeros(sum_ND.shape, jnp.float32)
        sum_NW[...] = jnp.zeros(sum_NW.shape, jnp.float32)

    @_when(_is_within(turn, first_BC, last_BC))
    def compute() -> None:
        query, gradient = given.query_MD[0, 0], given.gradient_MW[0, 0]
        share_NM, to_score_NM = _score_gradients(how, number, given)
        sum_ND[...] += _product(to_score_NM.astype(query.dtype), query, (1, 0))
        sum_NW[...] += _product(share_NM.astype(gradient.dtype), gradient, (1, 0))

    @_when((head == heads - 1) & (turn == turns - 1))
    def end() -> None:
        to_key_ND[0, 0] = sum_ND[...]
        to_value_NW[0, 0] = sum_NW[...]


def _score_gradients(how: How, key_block: Any, given: _Given) -> tuple[jax.Array, jax.Array]:
    """Returns the shares of a block, and the gradients of its products of queries with keys."""
    score_NM = _rows_with_rows(given.key_ND[0, 0], given.query_MD[0, 0]) * how.scale
    score_NM, map_back = mapped(how.score_map, score_NM)
    share_NM = jnp.exp(score_NM - given.log_1M[0, 0])
    share_NM = jnp.where(_visible(how, key_block, given.start_1M, given.stop_1M), share_NM, 0)
    to_share_NM = _rows_with_rows(given.value_NW[0, 0], given.gradient_MW[0, 0])
    return share_NM, map_back(share_NM * (to_share_NM - given.mean_1M[0, 0])) * how.scale


def _visible(how: How, key_block: Any, start_1M: Any, stop_1M: Any) -> Any:
    """Says which pairs of a block are within the ranges of its queries."""
    key_NM = jax.lax.broadcasted_iota(jnp.int32, (how.block, how.block), 0)
    key_NM += key_block * how.block
    return (key_NM >= start_1M[0]) & (key_NM < stop_1M[0])


def _is_within(turn: Any, first_BQ: Any, last_BQ: Any) -> Any:
    row, number = _number(0), _number(2)
    return (turn >= first_BQ[row, number]) & (turn < last_BQ[row, number])


def _rows_with_rows(left: Any, right: Any) -> Any:
    return _product(left, right, (1, 1))


def _columns_with_columns(left: Any, right: Any) -> Any:
    return _product(left, right, (0, 0))


def _product(left: Any, right: Any, axes: tuple[int, int]) -> Any:
    """Multiplies two blocks; float32 is not rounded before."""
    exact = jax.lax.Precision.HIGHEST if left.dtype == jnp.float32 else None
    sides = (((axes[0],), (axes[1],)), ((), ()))
    return jax.lax.dot_general(left, right, sides, exact, jnp.float32)


def _number(axis: int) -> Any:
    from jax.experimental import pallas

    return pallas.program_id(axis)


def _turn(axis: int) -> tuple[Any, Any]:
    """Returns the number of the step along an axis of the grid, and how many there are."""
    from jax.experimental import pallas

    return pallas.program_id(axis), pallas.num_programs(axis)


def _when(condition: Any) -> Callable[[Callable[[], None]], Any]:
    from jax.experimental import pallas

    return pallas.when(condition)
