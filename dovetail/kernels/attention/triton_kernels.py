"""Flash attention in three Pallas kernels for Triton: outputs, gradients of queries, and of keys.

Each program has one block of rows, and goes through the blocks that those see (or are seen by, for
the gradients of keys and values). What is visible comes as ranges, so a block outside of them is
skipped, and one inside of all of them needs no mask. A width is taken apart into powers of two,
which is what Triton multiplies: 192 is 128 and 64, and nothing is filled up.

B batch, S sequence, H heads, K key-value heads, D width of queries and keys, W of values, M and N
rows of a block that is the program's own and of one that it goes through.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from dovetail.kernels.attention.flash import Rows
from dovetail.kernels.attention.ranges import Ranges
from dovetail.kernels.attention.scores import LOW, mapped
from dovetail.kernels.score_maps import ScoreMap
from dovetail.kernels.triton_tiles import SMALLEST_SIDE, call, dot

LARGEST_BLOCK = 128
WIDEST_PART = 128
# A block's own rows, and two stages of those that it goes through, fit the fast memory of an A100
# (163 KiB). What the backward pass adds up for its own must fit a B200's tensor memory, too.
OWN_BYTES, OWN_BYTES_BACKWARD, OTHER_BYTES = 64 << 10, 48 << 10, 32 << 10
STAGES = 2


class How(NamedTuple):
    """What is done to scores, and to results; hashable.

    Attributes:
        scale: what scores are multiplied with.
        score_map: what is done to them then.
        interpret: whether kernels are run step by step.
        results: the type of the results; None means that of the array that each belongs to.
    """

    scale: float
    score_map: ScoreMap | None
    interpret: bool
    results: str | None = None

    def like(self, shape: tuple[int, ...], array: jax.Array) -> jax.ShapeDtypeStruct:
        """Returns a result's shape and type."""
        return jax.ShapeDtypeStruct(shape, self.results or array.dtype)


class Blocks(NamedTuple):
    """The rows of a program's own block and of those it goes through, and how many warps work."""

    own: int
    other: int
    warps: int


def forward_blocks(query_BSHD: Any, value_BSKW: Any) -> Blocks:
    """Returns the blocks of the forward pass."""
    _, room = _row(query_BSHD, value_BSKW)
    own = _power_of_two(OWN_BYTES // room, LARGEST_BLOCK)
    return Blocks(own, _power_of_two(OTHER_BYTES // room, 64), 8 if own > 64 else 4)


def backward_blocks(query_BSHD: Any, value_BSKW: Any) -> Blocks:
    """Returns the blocks of the backward pass, which sums up more at a time: they are smaller."""
    width, room = _row(query_BSHD, value_BSKW)
    own = _power_of_two(OWN_BYTES_BACKWARD // room, 64)
    return Blocks(own, _power_of_two(OTHER_BYTES // room, 32), 8 if width > 256 else 4)


def _row(query_BSHD: Any, value_BSKW: Any) -> tuple[int, int]:
    """Returns the width of a row of both, and the bytes that it takes in a program."""
    width, itemsize = query_BSHD.shape[3] + value_BSKW.shape[3], query_BSHD.dtype.itemsize
    # Tensor cores multiply no float32 as it is: then both sides of a product stand in registers.
    return width, width * itemsize * (2 if itemsize > 2 else 1)


def forward(
    how: How,
    query_BSHD: jax.Array,
    key_BSKD: jax.Array,
    value_BSKW: jax.Array,
    seen: Ranges,
    sinks_H: jax.Array | None,
) -> tuple[jax.Array, jax.Array]:
    """Returns the output, and the logarithm of each row's sum of weights as [B, H, S]."""
    batch, length, heads, _ = query_BSHD.shape
    blocks = forward_blocks(query_BSHD, value_BSKW)
    mixed = how.like((*query_BSHD.shape[:3], value_BSKW.shape[3]), query_BSHD)
    log = jax.ShapeDtypeStruct((batch, heads, length), jnp.float32)
    sinks = () if sinks_H is None else (sinks_H.astype(jnp.float32),)
    mixed_BSHW, log_BHS = call(
        functools.partial(_forward_kernel, how, blocks),
        grid=(length // blocks.own, heads, batch),
        out_shape=(mixed, log),
        name="flash_forward",
        interpret=how.interpret,
        warps=blocks.warps,
        stages=STAGES,
    )(query_BSHD, key_BSKD, value_BSKW, *seen, *sinks)
    return mixed_BSHW, log_BHS


def query_gradients(
    how: How,
    query_BSHD: jax.Array,
    key_BSKD: jax.Array,
    value_BSKW: jax.Array,
    seen: Ranges,
    rows: Rows,
) -> jax.Array:
    """Returns the gradient of the queries."""
    batch, length, heads, _ = query_BSHD.shape
    blocks = backward_blocks(query_BSHD, value_BSKW)
    to_query_BSHD: jax.Array = call(
        functools.partial(_query_kernel, how, blocks),
        grid=(length // blocks.own, heads, batch),
        out_shape=how.like(query_BSHD.shape, query_BSHD),
        name="flash_queries",
        interpret=how.interpret,
        warps=blocks.warps,
        stages=STAGES,
    )(query_BSHD, key_BSKD, value_BSKW, *seen, rows.gradient_BSHW, rows.log_BHS, rows.mean_BHS)
    return to_query_BSHD


def key_gradients(
    how: How,
    query_BSHD: jax.Array,
    key_BSKD: jax.Array,
    value_BSKW: jax.Array,
    seeing: Ranges,
    rows: Rows,
) -> tuple[jax.Array, jax.Array]:
    """Returns the gradients of keys and values, from the queries that see them."""
    batch, length, kv_heads, _ = key_BSKD.shape
    blocks = backward_blocks(query_BSHD, value_BSKW)
    shapes = [how.like(one.shape, one) for one in (key_BSKD, value_BSKW)]
    to_key_BSKD, to_value_BSKW = call(
        functools.partial(_key_kernel, how, blocks),
        grid=(length // blocks.own, kv_heads, batch),
        out_shape=tuple(shapes),
        name="flash_keys",
        interpret=how.interpret,
        warps=blocks.warps,
        stages=STAGES,
    )(query_BSHD, key_BSKD, value_BSKW, *seeing, rows.gradient_BSHW, rows.log_BHS, rows.mean_BHS)
    return to_key_BSKD, to_value_BSKW


def _forward_kernel(
    how: How,
    blocks: Blocks,
    query_BSHD: Any,
    key_BSKD: Any,
    value_BSKW: Any,
    start_BS: Any,
    stop_BS: Any,
    *rest: Any,
) -> None:
    """Mixes the values for one block of one head's queries."""
    *sinks_H, mixed_BSHW, log_BHS = rest
    number, head, row = _program()
    kv_head = _shared_head(head, query_BSHD, key_BSKD)
    here = _rows(number, blocks.own)
    queries = _tiles(query_BSHD, row, here, head)
    range_M = start_BS[row, here], stop_BS[row, here]

    def step(turn: Any, seen: Any, is_masked: bool) -> Any:
        highest_M, total_M, mixed = seen
        there = _rows(turn, blocks.other)
        score_MN = _product(queries, _tiles(key_BSKD, row, there, kv_head)) * how.scale
        score_MN, _ = mapped(how.score_map, score_MN)
        if is_masked:
            score_MN = jnp.where(_visible(range_M, turn, blocks), score_MN, LOW)
        now_M = jnp.maximum(highest_M, score_MN.max(axis=1))
        # What a block of nothing but LOW adds is forgotten with the first key that is seen.
        weight_MN, kept_M = jnp.exp(score_MN - now_M[:, None]), jnp.exp(highest_M - now_M)
        values = _tiles(value_BSKW, row, there, kv_head)
        added = [dot(weight_MN.astype(value.dtype), value) for value in values]
        mixed = [old * kept_M[:, None] + new for old, new in zip(mixed, added, strict=True)]
        return now_M, total_M * kept_M + weight_MN.sum(axis=1), mixed

    # A sink is the first that every query sees, and its value is 0.
    sink = sinks_H[0][head] if sinks_H else LOW
    highest_M = jnp.full((blocks.own,), sink, jnp.float32)
    total_M = jnp.full((blocks.own,), 1.0 if sinks_H else 0.0, jnp.float32)
    nothing = (highest_M, total_M, _zeros(blocks.own, value_BSKW))
    ends = _ends(start_BS, stop_BS, row, number, blocks)
    highest_M, total_M, mixed = _go_through(ends, step, nothing)
    total_M = jnp.where(total_M == 0, 1, total_M)  # of keys elsewhere a query may see none
    _store(mixed_BSHW, row, here, head, [part / total_M[:, None] for part in mixed])
    log_BHS[row, head, here] = highest_M + jnp.log(total_M)


def _query_kernel(
    how: How,
    blocks: Blocks,
    query_BSHD: Any,
    key_BSKD: Any,
    value_BSKW: Any,
    start_BS: Any,
    stop_BS: Any,
    gradient_BSHW: Any,
    log_BHS: Any,
    mean_BHS: Any,
    to_query_BSHD: Any,
) -> None:
    """Computes the gradient of one block of one head's queries."""
    number, head, row = _program()
    kv_head = _shared_head(head, query_BSHD, key_BSKD)
    here = _rows(number, blocks.own)
    queries = _tiles(query_BSHD, row, here, head)
    gradients = _tiles(gradient_BSHW, row, here, head)
    log_M, mean_M = log_BHS[row, head, here], mean_BHS[row, head, here]
    range_M = start_BS[row, here], stop_BS[row, here]

    def step(turn: Any, to_query: Any, is_masked: bool) -> Any:
        there = _rows(turn, blocks.other)
        keys = _tiles(key_BSKD, row, there, kv_head)
        score_MN, map_back = mapped(how.score_map, _product(queries, keys) * how.scale)
        share_MN = jnp.exp(score_MN - log_M[:, None])
        if is_masked:
            share_MN = jnp.where(_visible(range_M, turn, blocks), share_MN, 0)
        to_share_MN = _product(gradients, _tiles(value_BSKW, row, there, kv_head))
        to_score_MN = map_back(share_MN * (to_share_MN - mean_M[:, None])) * how.scale
        to_score_MN = to_score_MN.astype(key_BSKD.dtype)
        return [old + dot(to_score_MN, key) for old, key in zip(to_query, keys, strict=True)]

    ends = _ends(start_BS, stop_BS, row, number, blocks)
    to_query = _go_through(ends, step, _zeros(blocks.own, query_BSHD))
    _store(to_query_BSHD, row, here, head, to_query)


def _key_kernel(
    how: How,
    blocks: Blocks,
    query_BSHD: Any,
    key_BSKD: Any,
    value_BSKW: Any,
    start_BS: Any,
    stop_BS: Any,
    gradient_BSHW: Any,
    log_BHS: Any,
    mean_BHS: Any,
    to_key_BSKD: Any,
    to_value_BSKW: Any,
) -> None:
    """Computes the gradients of one block of keys and values, from all heads that share them."""
    number, kv_head, row = _program()
    shared = query_BSHD.shape[2] // key_BSKD.shape[2]
    here = _rows(number, blocks.own)
    keys, values = _tiles(key_BSKD, row, here, kv_head), _tiles(value_BSKW, row, here, kv_head)
    range_M = start_BS[row, here], stop_BS[row, here]
    ends = _ends(start_BS, stop_BS, row, number, blocks)

    def step(head: Any, turn: Any, totals: Any, is_masked: bool) -> Any:
        to_key, to_value = totals
        there = _rows(turn, blocks.other)
        queries = _tiles(query_BSHD, row, there, head)
        score_MN, map_back = mapped(how.score_map, _product(keys, queries) * how.scale)
        share_MN = jnp.exp(score_MN - log_BHS[row, head, there][None])
        if is_masked:
            share_MN = jnp.where(_visible(range_M, turn, blocks), share_MN, 0)
        gradients = _tiles(gradient_BSHW, row, there, head)
        to_share_MN = _product(values, gradients) - mean_BHS[row, head, there][None]
        to_score_MN = (map_back(share_MN * to_share_MN) * how.scale).astype(query_BSHD.dtype)
        share_MN = share_MN.astype(gradient_BSHW.dtype)
        return (
            [old + dot(to_score_MN, query) for old, query in zip(to_key, queries, strict=True)],
            [old + dot(share_MN, one) for old, one in zip(to_value, gradients, strict=True)],
        )

    def of_head(index: Any, totals: Any) -> Any:
        return _go_through(ends, functools.partial(step, kv_head * shared + index), totals)

    nothing = _zeros(blocks.own, key_BSKD), _zeros(blocks.own, value_BSKW)
    to_key, to_value = jax.lax.fori_loop(0, shared, of_head, nothing)
    _store(to_key_BSKD, row, here, kv_head, to_key)
    _store(to_value_BSKW, row, here, kv_head, to_value)


class _Ends(NamedTuple):
    """Blocks that a program goes through: from first to last, and those that need no mask."""

    first: Any
    first_whole: Any
    last_whole: Any
    last: Any


def _ends(start_BS: Any, stop_BS: Any, row: Any, number: Any, blocks: Blocks) -> _Ends:
    """Returns which blocks any row of a program's own sees, and which all of them see whole."""
    top, bottom = number * blocks.own, number * blocks.own + blocks.own - 1
    first = jax.lax.div(start_BS[row, top], blocks.other)
    last = _divided_up(stop_BS[row, bottom], blocks.other)
    first_whole = jnp.minimum(_divided_up(start_BS[row, bottom], blocks.other), last)
    last_whole = jnp.maximum(jax.lax.div(stop_BS[row, top], blocks.other), first_whole)
    return _Ends(first, first_whole, last_whole, last)


def _go_through(ends: _Ends, step: Callable[..., Any], start: Any) -> Any:
    masked = functools.partial(step, is_masked=True)
    state = jax.lax.fori_loop(ends.first, ends.first_whole, masked, start)
    whole = functools.partial(step, is_masked=False)
    state = jax.lax.fori_loop(ends.first_whole, ends.last_whole, whole, state)
    return jax.lax.fori_loop(ends.last_whole, ends.last, masked, state)


def _visible(range_M: tuple[Any, Any], turn: Any, blocks: Blocks) -> Any:
    """Says which pairs of a block are within the ranges of its own rows."""
    other_N = turn * blocks.other + jax.lax.broadcasted_iota(jnp.int32, (1, blocks.other), 1)
    start_M, stop_M = range_M
    return (other_N >= start_M[:, None]) & (other_N < stop_M[:, None])


def _product(left: Sequence[Any], right: Sequence[Any]) -> Any:
    """Multiplies rows with rows, part by part of their width."""
    return sum(dot(one, other, trans_b=True) for one, other in zip(left, right, strict=True))


def _tiles(array: Any, row: Any, here: Any, head: Any) -> list[Any]:
    return [array[row, here, head, columns] for columns in _columns(array)]


def _store(array: Any, row: Any, here: Any, head: Any, tiles: Sequence[Any]) -> None:
    for columns, tile in zip(_columns(array), tiles, strict=True):
        array[row, here, head, columns] = tile.astype(array.dtype)


def _zeros(rows: int, array: Any) -> list[Any]:
    return [jnp.zeros((rows, columns.size), jnp.float32) for columns in _columns(array)]


def _columns(array: Any) -> Iterator[Any]:
    """Takes the last axis of an array apart into powers of two, the large ones first."""
    from jax.experimental import pallas

    start, width = 0, array.shape[-1]
    while start < width:
        size = _power_of_two(width - start, WIDEST_PART)
        yield pallas.ds(start, size)
        start += size


def _rows(number: Any, size: int) -> Any:
    from jax.experimental import pallas

    return pallas.ds(number * size, size)


def _program() -> tuple[Any, Any, Any]:
    """Returns the number of the program's block, its head, and its row of the batch."""
    from jax.experimental import pallas

    return pallas.program_id(0), pallas.program_id(1), pallas.program_id(2)


def _shared_head(head: Any, query_BSHD: Any, key_BSKD: Any) -> Any:
    return jax.lax.div(head, query_BSHD.shape[2] // key_BSKD.shape[2])


def _divided_up(number: Any, divisor: int) -> Any:
    return jax.lax.div(number + divisor - 1, divisor)


def _power_of_two(limit: int, largest: int) -> int:
    """Returns the largest power of two up to two limits, and at least what Triton takes."""
    return max(SMALLEST_SIDE, 1 << (min(limit, largest).bit_length() - 1))
