"""Flash attention in three Pallas kernels for Triton: the output, dq, and dk with dv.

A program owns one block of M rows (queries; keys for dk and dv), and loops over the blocks of N
rows of the other side. The mask comes as ranges: a block outside of them is skipped, and one inside
of all of them needs no mask. A width is split into powers of two, as Triton multiplies: 192 is 128
and 64, without padding.

B batch, S sequence, H heads, K KV heads, D width of queries and keys, W width of values, M rows of
the program's own block, N rows of a block that it loops over.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from dovetail.kernels.attention.flash import BackwardInputs
from dovetail.kernels.attention.op import AttentionCall
from dovetail.kernels.attention.ranges import TokenRanges
from dovetail.kernels.attention.xla.scores import LOW, apply_score_map
from dovetail.kernels.score_maps import ScoreMap
from dovetail.kernels.triton_tiles import SMALLEST_SIDE, dot
from dovetail.kernels.triton_tiles import call as call_kernel

MAX_BLOCK = 128
MAX_TILE_WIDTH = 128
# The own block, and two pipeline stages of the other ones, fit the shared memory of an A100
# (163 KiB). The accumulators of the backward pass must fit a B200's tensor memory, too.
BLOCK_M_BYTES, BLOCK_M_BYTES_BACKWARD, BLOCK_N_BYTES = 64 << 10, 48 << 10, 32 << 10
STAGES = 2


class TritonOptions(NamedTuple):
    """The static arguments of the kernels: hashable.

    Attributes:
        scale: the factor of the scores.
        score_map: applied to the scaled scores.
        interpret: whether kernels run in interpret mode.
        out_dtype: the dtype of o, dq, dk and dv; None means that of q, k and v.
    """

    scale: float
    score_map: ScoreMap | None
    interpret: bool
    out_dtype: str | None = None

    def like(self, shape: tuple[int, ...], array: jax.Array) -> jax.ShapeDtypeStruct:
        """Returns the shape and dtype of a result."""
        return jax.ShapeDtypeStruct(shape, self.out_dtype or array.dtype)


class BlockSizes(NamedTuple):
    """The rows of a program's own block and of those it loops over, and the number of warps."""

    block_m: int
    block_n: int
    warps: int


def forward_blocks(call: AttentionCall) -> BlockSizes:
    """Returns the block sizes of the forward pass."""
    _, row_bytes = _row(call)
    block_m = _power_of_two(BLOCK_M_BYTES // row_bytes, MAX_BLOCK)
    return BlockSizes(
        block_m, _power_of_two(BLOCK_N_BYTES // row_bytes, 64), 8 if block_m > 64 else 4
    )


def backward_blocks(call: AttentionCall) -> BlockSizes:
    """Returns the block sizes of the backward pass: smaller, for it has more accumulators."""
    width, row_bytes = _row(call)
    block_m = _power_of_two(BLOCK_M_BYTES_BACKWARD // row_bytes, 64)
    return BlockSizes(
        block_m, _power_of_two(BLOCK_N_BYTES // row_bytes, 32), 8 if width > 256 else 4
    )


def _row(call: AttentionCall) -> tuple[int, int]:
    """Returns the width of a row of q and v together, and the bytes that it takes."""
    itemsize = call.q_BSHD.dtype.itemsize
    width = call.q_BSHD.shape[3] + call.v_BTKW.shape[3]
    # Tensor cores do not multiply float32: then both operands of a matmul are in registers.
    return width, width * itemsize * (2 if itemsize > 2 else 1)


def forward(
    options: TritonOptions, call: AttentionCall, keys: TokenRanges
) -> tuple[jax.Array, jax.Array]:
    """Returns the output, and the logsumexp of the scores as [B, H, S]."""
    batch, length, heads, _ = call.q_BSHD.shape
    o = options.like((batch, length, heads, call.v_BTKW.shape[3]), call.q_BSHD)
    lse = jax.ShapeDtypeStruct((batch, heads, length), jnp.float32)
    sinks = () if call.sinks_H is None else (call.sinks_H.astype(jnp.float32),)
    run = _kernel(_forward_kernel, "flash_forward", options, forward_blocks(call), call.q_BSHD)
    o_BSHW, lse_BHS = run((o, lse), *call.qkv, *keys, *sinks)
    return o_BSHW, lse_BHS


def backward(
    options: TritonOptions,
    call: AttentionCall,
    keys: TokenRanges,
    queries: TokenRanges,
    given: BackwardInputs,
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Returns dq from the keys of each query, and dk and dv from the queries of each key."""
    blocks, rows = backward_blocks(call), (given.do_BSHW, given.lse_BHS, given.delta_BHS)
    dq, dk, dv = (options.like(array.shape, array) for array in call.qkv)
    run = _kernel(_dq_kernel, "flash_dq", options, blocks, call.q_BSHD)
    dq_BSHD = run(dq, *call.qkv, *keys, *rows)
    run = _kernel(_dkv_kernel, "flash_dkv", options, blocks, call.k_BTKD)
    dk_BSKD, dv_BSKW = run((dk, dv), *call.qkv, *queries, *rows)
    return dq_BSHD, dk_BSKD, dv_BSKW


def _kernel(
    kernel: Callable[..., None],
    name: str,
    options: TritonOptions,
    blocks: BlockSizes,
    own: jax.Array,
) -> Callable[..., Any]:
    """Returns a function from shapes of results and arrays to results.

    It has one program for each block of each head of `own`, which is q or k.
    """
    batch, length, heads, _ = own.shape

    def run(out_shape: Any, *arrays: jax.Array) -> Any:
        return call_kernel(
            functools.partial(kernel, options, blocks),
            grid=(length // blocks.block_m, heads, batch),
            out_shape=out_shape,
            name=name,
            interpret=options.interpret,
            warps=blocks.warps,
            stages=STAGES,
        )(*arrays)

    return run


class _Inputs(NamedTuple):
    """The input arrays of a kernel; the last three are those of a backward kernel."""

    q_BSHD: Any
    k_BSKD: Any
    v_BSKW: Any
    start_BS: Any
    stop_BS: Any
    do_BSHW: Any = None
    lse_BHS: Any = None
    delta_BHS: Any = None


def _forward_kernel(options: TritonOptions, blocks: BlockSizes, *arrays: Any) -> None:
    """Computes the output of one block of one head's queries."""
    given, (*sinks_H, o_BSHW, lse_BHS) = _Inputs(*arrays[:5]), arrays[5:]
    block, head, row = _program()
    kv_head = _kv_head(head, given)
    own = _rows(block, blocks.block_m)
    q_tiles = _tiles(given.q_BSHD, row, own, head)
    range_M = given.start_BS[row, own], given.stop_BS[row, own]

    def step(index: Any, state: Any, is_masked: bool) -> Any:
        m_M, l_M, o = state
        other = _rows(index, blocks.block_n)
        s_MN = _matmul(q_tiles, _tiles(given.k_BSKD, row, other, kv_head)) * options.scale
        s_MN, _ = apply_score_map(options.score_map, s_MN)
        if is_masked:
            s_MN = jnp.where(_mask(range_M, index, blocks), s_MN, LOW)
        m_new_M = jnp.maximum(m_M, s_MN.max(axis=1))
        # Rescale the running sum and the output to the new running max. What a fully masked block
        # (all scores LOW) added vanishes here with the first key that is not masked.
        p_MN, alpha_M = jnp.exp(s_MN - m_new_M[:, None]), jnp.exp(m_M - m_new_M)
        v_tiles = _tiles(given.v_BSKW, row, other, kv_head)
        added = [dot(p_MN.astype(v.dtype), v) for v in v_tiles]
        o = [old * alpha_M[:, None] + new for old, new in zip(o, added, strict=True)]
        return m_new_M, l_M * alpha_M + p_MN.sum(axis=1), o

    # A sink is a first key that every query attends to, with a value of 0.
    sink = sinks_H[0][head] if sinks_H else LOW
    m_M = jnp.full((blocks.block_m,), sink, jnp.float32)
    l_M = jnp.full((blocks.block_m,), 1.0 if sinks_H else 0.0, jnp.float32)
    init = (m_M, l_M, _zeros(blocks.block_m, given.v_BSKW))
    m_M, l_M, o = _loop(_loop_bounds(given, row, block, blocks), step, init)
    l_M = jnp.where(l_M == 0, 1, l_M)  # in a ring, a query may attend to none of these keys
    _store(o_BSHW, row, own, head, [tile / l_M[:, None] for tile in o])
    lse_BHS[row, head, own] = m_M + jnp.log(l_M)  # the logsumexp of the scores


def _dq_kernel(options: TritonOptions, blocks: BlockSizes, *arrays: Any) -> None:
    """Computes dq for one block of one head's queries."""
    given, (dq_BSHD,) = _Inputs(*arrays[:8]), arrays[8:]
    block, head, row = _program()
    kv_head = _kv_head(head, given)
    own = _rows(block, blocks.block_m)
    q_tiles, do_tiles = (_tiles(x, row, own, head) for x in (given.q_BSHD, given.do_BSHW))
    lse_M, delta_M = given.lse_BHS[row, head, own], given.delta_BHS[row, head, own]
    range_M = given.start_BS[row, own], given.stop_BS[row, own]

    def step(index: Any, dq: Any, is_masked: bool) -> Any:
        other = _rows(index, blocks.block_n)
        k_tiles = _tiles(given.k_BSKD, row, other, kv_head)
        s_MN = _matmul(q_tiles, k_tiles) * options.scale
        s_MN, map_vjp = apply_score_map(options.score_map, s_MN)
        p_MN = jnp.exp(s_MN - lse_M[:, None])
        if is_masked:
            p_MN = jnp.where(_mask(range_M, index, blocks), p_MN, 0)
        dp_MN = _matmul(do_tiles, _tiles(given.v_BSKW, row, other, kv_head))
        ds_MN = map_vjp(p_MN * (dp_MN - delta_M[:, None])) * options.scale
        ds_MN = ds_MN.astype(given.k_BSKD.dtype)
        return [old + dot(ds_MN, k) for old, k in zip(dq, k_tiles, strict=True)]

    bounds = _loop_bounds(given, row, block, blocks)
    dq = _loop(bounds, step, _zeros(blocks.block_m, given.q_BSHD))
    _store(dq_BSHD, row, own, head, dq)


def _dkv_kernel(options: TritonOptions, blocks: BlockSizes, *arrays: Any) -> None:
    """Computes dk and dv for one block of keys, from all query heads of its KV head."""
    given, (dk_BSKD, dv_BSKW) = _Inputs(*arrays[:8]), arrays[8:]
    block, kv_head, row = _program()
    group = given.q_BSHD.shape[2] // given.k_BSKD.shape[2]
    own = _rows(block, blocks.block_m)
    k_tiles, v_tiles = (_tiles(x, row, own, kv_head) for x in (given.k_BSKD, given.v_BSKW))
    range_M = given.start_BS[row, own], given.stop_BS[row, own]
    bounds = _loop_bounds(given, row, block, blocks)

    def step(head: Any, index: Any, totals: Any, is_masked: bool) -> Any:
        dk, dv = totals
        other = _rows(index, blocks.block_n)
        q_tiles = _tiles(given.q_BSHD, row, other, head)
        s_MN = _matmul(k_tiles, q_tiles) * options.scale
        s_MN, map_vjp = apply_score_map(options.score_map, s_MN)
        p_MN = jnp.exp(s_MN - given.lse_BHS[row, head, other][None])
        if is_masked:
            p_MN = jnp.where(_mask(range_M, index, blocks), p_MN, 0)
        do_tiles = _tiles(given.do_BSHW, row, other, head)
        dp_MN = _matmul(v_tiles, do_tiles) - given.delta_BHS[row, head, other][None]
        ds_MN = (map_vjp(p_MN * dp_MN) * options.scale).astype(given.q_BSHD.dtype)
        p_MN = p_MN.astype(given.do_BSHW.dtype)
        return (
            [old + dot(ds_MN, q) for old, q in zip(dk, q_tiles, strict=True)],
            [old + dot(p_MN, do) for old, do in zip(dv, do_tiles, strict=True)],
        )

    def query_head(index: Any, totals: Any) -> Any:
        return _loop(bounds, functools.partial(step, kv_head * group + index), totals)

    init = _zeros(blocks.block_m, given.k_BSKD), _zeros(blocks.block_m, given.v_BSKW)
    dk, dv = jax.lax.fori_loop(0, group, query_head, init)
    _store(dk_BSKD, row, own, kv_head, dk)
    _store(dv_BSKW, row, own, kv_head, dv)


class _LoopBounds(NamedTuple):
    """The blocks that a program loops over: [start, stop).

    Those in [full_start, full_stop) are inside the ranges of all its rows, and need no mask.
    """

    start: Any
    full_start: Any
    full_stop: Any
    stop: Any


def _loop_bounds(given: _Inputs, row: Any, block: Any, blocks: BlockSizes) -> _LoopBounds:
    from jax.experimental import pallas

    # Ranges do not decrease: the first row has the smallest ends, the last row the largest.
    first, last = block * blocks.block_m, block * blocks.block_m + blocks.block_m - 1
    start = jax.lax.div(given.start_BS[row, first], blocks.block_n)
    stop = pallas.cdiv(given.stop_BS[row, last], blocks.block_n)
    full_start = jnp.minimum(pallas.cdiv(given.start_BS[row, last], blocks.block_n), stop)
    full_stop = jnp.maximum(jax.lax.div(given.stop_BS[row, first], blocks.block_n), full_start)
    return _LoopBounds(start, full_start, full_stop, stop)


def _loop(bounds: _LoopBounds, step: Callable[..., Any], init: Any) -> Any:
    masked = functools.partial(step, is_masked=True)
    state = jax.lax.fori_loop(bounds.start, bounds.full_start, masked, init)
    unmasked = functools.partial(step, is_masked=False)
    state = jax.lax.fori_loop(bounds.full_start, bounds.full_stop, unmasked, state)
    return jax.lax.fori_loop(bounds.full_stop, bounds.stop, masked, state)


def _mask(range_M: tuple[Any, Any], index: Any, blocks: BlockSizes) -> Any:
    """Returns which pairs of a block are within the ranges of the program's own rows."""
    index_1N = index * blocks.block_n + jax.lax.broadcasted_iota(jnp.int32, (1, blocks.block_n), 1)
    start_M, stop_M = range_M
    return (index_1N >= start_M[:, None]) & (index_1N < stop_M[:, None])


def _matmul(left: Sequence[Any], right: Sequence[Any]) -> Any:
    """Computes `left @ right.T`, tile by tile of their width."""
    return sum(dot(one, other, trans_b=True) for one, other in zip(left, right, strict=True))


def _tiles(array: Any, row: Any, rows: Any, head: Any) -> list[Any]:
    return [array[row, rows, head, columns] for columns in _columns(array)]


def _store(array: Any, row: Any, rows: Any, head: Any, tiles: Sequence[Any]) -> None:
    for columns, tile in zip(_columns(array), tiles, strict=True):
        array[row, rows, head, columns] = tile.astype(array.dtype)


def _zeros(rows: int, array: Any) -> list[Any]:
    return [jnp.zeros((rows, columns.size), jnp.float32) for columns in _columns(array)]


def _columns(array: Any) -> Iterator[Any]:
    """Splits the last axis of an array into powers of two, the large ones first."""
    from jax.experimental import pallas

    start, width = 0, array.shape[-1]
    while start < width:
        size = _power_of_two(width - start, MAX_TILE_WIDTH)
        yield pallas.ds(start, size)
        start += size


def _rows(block: Any, size: int) -> Any:
    from jax.experimental import pallas

    return pallas.ds(block * size, size)


def _program() -> tuple[Any, Any, Any]:
    """Returns the program's block, head and row of the batch."""
    from jax.experimental import pallas

    return pallas.program_id(0), pallas.program_id(1), pallas.program_id(2)


def _kv_head(head: Any, given: _Inputs) -> Any:
    return jax.lax.div(head, given.q_BSHD.shape[2] // given.k_BSKD.shape[2])


def _power_of_two(limit: int, largest: int) -> int:
    """Returns the largest power of two up to both limits, but at least Triton's smallest side."""
    return max(SMALLEST_SIDE, 1 << (min(limit, largest).bit_length() - 1))
