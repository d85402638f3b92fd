"""Flash attention over key ranges in three Pallas kernels for TPUs: the output, dq, and dk with dv.

Scores are [keys, queries]: then the values of a query (its range, m and l) are one row along the
lanes, which suits a TPU's registers. The output and dq are transposed too, and XLA transposes them
back.

B batch, S queries, T keys, H heads, K KV heads, D width of queries and keys, W width of values, M
queries of a block, N keys of a block, Q number of query blocks, C number of key blocks. A block of
an input or a result has the axes of the array: batch and head are of size 1.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from dovetail.kernels.attention.flash import BackwardInputs
from dovetail.kernels.attention.op import AttentionCall
from dovetail.kernels.attention.ranges import TokenRanges
from dovetail.kernels.attention.tpu.grid import KeyGrid, QueryGrid, block_ranges, run_kernel
from dovetail.kernels.attention.xla.scores import LOW, apply_score_map
from dovetail.kernels.score_maps import ScoreMap


class TPUOptions(NamedTuple):
    """The static arguments of the kernels: hashable.

    Attributes:
        scale: the factor of the scores.
        score_map: applied to the scaled scores.
        block: the queries, and the keys, of a block.
        interpret: whether kernels run in interpret mode.
    """

    scale: float
    score_map: ScoreMap | None
    block: int
    interpret: bool


def forward(
    options: TPUOptions, call: AttentionCall, keys: TokenRanges
) -> tuple[jax.Array, jax.Array]:
    """Returns the output, and the logsumexp of the scores as [B, H, S], both in float32."""
    batch, length, heads, _ = call.q_BSHD.shape
    width, size = call.v_BTKW.shape[3], options.block
    grid = QueryGrid(size, heads // call.k_BTKD.shape[2])
    o_BHWS, lse_BH1S = run_kernel(
        functools.partial(_forward_kernel, options),
        name="ranged_forward",
        interpret=options.interpret,
        grid=(batch, heads, length // size, call.k_BTKD.shape[1] // size),
        prefetch=block_ranges(keys, size),
        arrays=_arrays(grid, call, keys),
        results=[
            (grid.q_transposed, (batch, heads, width, length)),
            (grid.row, (batch, heads, 1, length)),
        ],
        scratch=[(width, size), (1, size), (1, size)],
    )
    return o_BHWS.transpose(0, 3, 1, 2), lse_BH1S[:, :, 0]


def backward(
    options: TPUOptions,
    call: AttentionCall,
    keys: TokenRanges,
    queries: TokenRanges,
    given: BackwardInputs,
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Returns dq, dk and dv in float32; `keys` masks pairs, and for dk and dv `queries` skips."""
    dq_BSHD = _backward_dq(options, call, keys, given)
    return dq_BSHD, *_backward_dkv(options, call, keys, queries, given)


def _backward_dq(
    options: TPUOptions, call: AttentionCall, keys: TokenRanges, given: BackwardInputs
) -> jax.Array:
    batch, length, heads, width = call.q_BSHD.shape
    grid = QueryGrid(options.block, heads // call.k_BTKD.shape[2])
    [dq_BHDS] = run_kernel(
        functools.partial(_dq_kernel, options),
        name="ranged_dq",
        interpret=options.interpret,
        grid=(batch, heads, length // options.block, call.k_BTKD.shape[1] // options.block),
        prefetch=block_ranges(keys, options.block),
        arrays=_arrays(grid, call, keys, given),
        results=[(grid.q_transposed, (batch, heads, width, length))],
        scratch=[(width, options.block)],
    )
    dq_BSHD: jax.Array = dq_BHDS.transpose(0, 3, 1, 2)
    return dq_BSHD


def _backward_dkv(
    options: TPUOptions,
    call: AttentionCall,
    keys: TokenRanges,
    queries: TokenRanges,
    given: BackwardInputs,
) -> tuple[jax.Array, jax.Array]:
    q_length, heads = call.q_BSHD.shape[1:3]
    batch, length, kv_heads, width = call.k_BTKD.shape
    group, size, v_width = heads // kv_heads, options.block, call.v_BTKW.shape[3]
    grid = KeyGrid(size, group)
    dk_BKTD, dv_BKTW = run_kernel(
        functools.partial(_dkv_kernel, options),
        name="ranged_dkv",
        interpret=options.interpret,
        grid=(batch, kv_heads, length // size, group, q_length // size),
        prefetch=block_ranges(queries, size),
        arrays=_arrays(grid, call, keys, given),
        results=[
            (grid.kv, (batch, kv_heads, length, width)),
            (grid.kv, (batch, kv_heads, length, v_width)),
        ],
        scratch=[(size, width), (size, v_width)],
    )
    return dk_BKTD.swapaxes(1, 2), dv_BKTW.swapaxes(1, 2)


class _BackwardBlocks(NamedTuple):
    """The input blocks of a backward kernel."""

    q_11MD: Any
    k_11ND: Any
    v_11NW: Any
    start_11M: Any
    stop_11M: Any
    do_11MW: Any
    lse_111M: Any
    delta_111M: Any


def _arrays(
    grid: QueryGrid | KeyGrid,
    call: AttentionCall,
    keys: TokenRanges,
    given: BackwardInputs | None = None,
) -> list[Any]:
    """Returns the inputs of a kernel, each with its block spec."""
    arrays = [
        (grid.q, call.q_BSHD.swapaxes(1, 2)),
        (grid.kv, call.k_BTKD.swapaxes(1, 2)),
        (grid.kv, call.v_BTKW.swapaxes(1, 2)),
        *((grid.token, array_BS[:, None]) for array_BS in keys),
    ]
    if given is None:
        return arrays
    return [
        *arrays,
        (grid.q, given.do_BSHW.swapaxes(1, 2)),
        (grid.row, given.lse_BHS[:, :, None]),
        (grid.row, given.delta_BHS[:, :, None]),
    ]


def _forward_kernel(
    options: TPUOptions,
    first_BQ: Any,
    last_BQ: Any,
    q_11MD: Any,
    k_11ND: Any,
    v_11NW: Any,
    start_11M: Any,
    stop_11M: Any,
    o_11WM: Any,
    lse_111M: Any,
    acc_WM: Any,
    m_1M: Any,
    l_1M: Any,
) -> None:
    """Updates the online softmax of one query block with one key block."""
    index, count = _grid_step(3)

    @_when(index == 0)
    def init() -> None:
        acc_WM[...] = jnp.zeros(acc_WM.shape, jnp.float32)
        m_1M[...] = jnp.full(m_1M.shape, LOW, jnp.float32)
        l_1M[...] = jnp.zeros(l_1M.shape, jnp.float32)

    @_when(_is_within(index, first_BQ, last_BQ))
    def compute() -> None:
        k, v = k_11ND[0, 0], v_11NW[0, 0]
        s_NM = _matmul(k, q_11MD[0, 0], (1, 1)) * options.scale
        s_NM, _ = apply_score_map(options.score_map, s_NM)
        s_NM = jnp.where(_mask(options, index, start_11M, stop_11M), s_NM, LOW)
        m_old_1M = m_1M[...]
        m_new_1M = jnp.maximum(m_old_1M, s_NM.max(axis=0, keepdims=True))
        # Rescale the running sum and the output to the new running max. What a fully masked block
        # (all scores LOW) added vanishes here with the first key that is not masked.
        p_NM, alpha_1M = jnp.exp(s_NM - m_new_1M), jnp.exp(m_old_1M - m_new_1M)
        added_WM = _matmul(v, p_NM.astype(v.dtype), (0, 0))
        acc_WM[...] = acc_WM[...] * alpha_1M + added_WM
        l_1M[...] = l_1M[...] * alpha_1M + p_NM.sum(axis=0, keepdims=True)
        m_1M[...] = m_new_1M

    @_when(index == count - 1)
    def finalize() -> None:
        denominator_1M = l_1M[...]
        # In a ring, a query may attend to none of these keys.
        denominator_1M = jnp.where(denominator_1M == 0, 1, denominator_1M)
        o_11WM[0, 0] = acc_WM[...] / denominator_1M
        lse_111M[0, 0] = m_1M[...] + jnp.log(denominator_1M)  # the logsumexp of the scores


def _dq_kernel(options: TPUOptions, first_BQ: Any, last_BQ: Any, *arrays: Any) -> None:
    """Adds what one key block gives to dq of one query block."""
    given, (dq_11DM, acc_DM) = _BackwardBlocks(*arrays[:8]), arrays[8:]
    index, count = _grid_step(3)

    @_when(index == 0)
    def init() -> None:
        acc_DM[...] = jnp.zeros(acc_DM.shape, jnp.float32)

    @_when(_is_within(index, first_BQ, last_BQ))
    def compute() -> None:
        k = given.k_11ND[0, 0]
        _, ds_NM = _score_gradients(options, index, given)
        acc_DM[...] += _matmul(k, ds_NM.astype(k.dtype), (0, 0))

    @_when(index == count - 1)
    def finalize() -> None:
        dq_11DM[0, 0] = acc_DM[...]


def _dkv_kernel(options: TPUOptions, first_BC: Any, last_BC: Any, *arrays: Any) -> None:
    """Adds what one query block of one head gives to dk and dv of one key block."""
    given, (dk_11ND, dv_11NW, dk_acc_ND, dv_acc_NW) = _BackwardBlocks(*arrays[:8]), arrays[8:]
    (head, heads), (index, count) = _grid_step(3), _grid_step(4)
    key_block = _program_id(2)

    @_when((head == 0) & (index == 0))
    def init() -> None:
        dk_acc_ND[...] = jnp.zeros(dk_acc_ND.shape, jnp.float32)
        dv_acc_NW[...] = jnp.zeros(dv_acc_NW.shape, jnp.float32)

    @_when(_is_within(index, first_BC, last_BC))
    def compute() -> None:
        q, do = given.q_11MD[0, 0], given.do_11MW[0, 0]
        p_NM, ds_NM = _score_gradients(options, key_block, given)
        dk_acc_ND[...] += _matmul(ds_NM.astype(q.dtype), q, (1, 0))
        dv_acc_NW[...] += _matmul(p_NM.astype(do.dtype), do, (1, 0))

    @_when((head == heads - 1) & (index == count - 1))
    def finalize() -> None:
        dk_11ND[0, 0] = dk_acc_ND[...]
        dv_11NW[0, 0] = dv_acc_NW[...]


def _score_gradients(
    options: TPUOptions, key_block: Any, given: _BackwardBlocks
) -> tuple[jax.Array, jax.Array]:
    """Recomputes p of a block from the logsumexp; returns p and the gradient of `q @ k.T`."""
    s_NM = _matmul(given.k_11ND[0, 0], given.q_11MD[0, 0], (1, 1)) * options.scale
    s_NM, map_vjp = apply_score_map(options.score_map, s_NM)
    p_NM = jnp.exp(s_NM - given.lse_111M[0, 0])
    p_NM = jnp.where(_mask(options, key_block, given.start_11M, given.stop_11M), p_NM, 0)
    dp_NM = _matmul(given.v_11NW[0, 0], given.do_11MW[0, 0], (1, 1))
    return p_NM, map_vjp(p_NM * (dp_NM - given.delta_111M[0, 0])) * options.scale


def _mask(options: TPUOptions, key_block: Any, start_11M: Any, stop_11M: Any) -> Any:
    """Returns which pairs of a block are within the key ranges of its queries."""
    index_NM = jax.lax.broadcasted_iota(jnp.int32, (options.block, options.block), 0)
    index_NM += key_block * options.block
    return (index_NM >= start_11M[0]) & (index_NM < stop_11M[0])


def _is_within(index: Any, first_BQ: Any, last_BQ: Any) -> Any:
    row, block = _program_id(0), _program_id(2)
    return (index >= first_BQ[row, block]) & (index < last_BQ[row, block])


def _matmul(left: Any, right: Any, axes: tuple[int, int]) -> Any:
    """Contracts one axis of each block; float32 is not rounded to bfloat16 first."""
    exact = jax.lax.Precision.HIGHEST if left.dtype == jnp.float32 else None
    sides = (((axes[0],), (axes[1],)), ((), ()))
    return jax.lax.dot_general(left, right, sides, exact, jnp.float32)


def _program_id(axis: int) -> Any:
    from jax.experimental import pallas

    return pallas.program_id(axis)


def _grid_step(axis: int) -> tuple[Any, Any]:
    """Returns the index of the program along an axis of the grid, and the size of the axis."""
    from jax.experimental import pallas

    return pallas.program_id(axis), pallas.num_programs(axis)


def _when(condition: Any) -> Callable[[Callable[[], None]], Any]:
    from jax.experimental import pallas

    return pallas.when(condition)
