"""The grid of a Pallas kernel for TPUs over token ranges: block specs and scalar prefetch.

The kernel gets the first and last block of each range by scalar prefetch. Blocks outside of it are
neither computed nor copied to VMEM (where a range is empty, one block is copied).

B batch, S queries, T keys, H heads, K KV heads, Q number of query blocks, C number of key blocks.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import jax
import jax.numpy as jnp

from dovetail.kernels.attention.ranges import TokenRanges

SpecOf = Callable[[Any], Any]
"""Maps the shape of an array to the arguments of its `pallas.BlockSpec`."""


class QueryGrid:
    """Block specs of programs that loop over keys: grid [B, H, Q, C]."""

    def __init__(self, size: int, group: int) -> None:
        """Takes the tokens of a block, and the query heads per KV head."""
        self._size, self._group = size, group

    def q(self, shape: Any) -> Any:
        """Returns the block of q or do, [B, H, S, width]."""
        return (1, 1, self._size, shape[3]), lambda b, h, q, c, *_: (b, h, q, 0)

    def kv(self, shape: Any) -> Any:
        """Returns the block of k or v, [B, K, T, width], of the KV head."""

        def index(b: Any, h: Any, q: Any, c: Any, first: Any, last: Any) -> Any:
            return b, jax.lax.div(h, self._group), _clamp(c, first[b, q], last[b, q]), 0

        return (1, 1, self._size, shape[3]), index

    def token(self, shape: Any) -> Any:
        """Returns the block of the queries' ranges, [B, 1, S]."""
        return (1, 1, self._size), lambda b, h, q, c, *_: (b, 0, q)

    def row(self, shape: Any) -> Any:
        """Returns the block of lse or delta, [B, H, 1, S]."""
        return (1, 1, 1, self._size), lambda b, h, q, c, *_: (b, h, 0, q)

    def q_transposed(self, shape: Any) -> Any:
        """Returns the block of a transposed o or dq, [B, H, width, S]."""
        return (1, 1, shape[2], self._size), lambda b, h, q, c, *_: (b, h, 0, q)


class KeyGrid:
    """Block specs of programs that loop over query heads and queries: grid [B, K, C, H / K, Q]."""

    def __init__(self, size: int, group: int) -> None:
        """Takes the tokens of a block, and the query heads per KV head."""
        self._size, self._group = size, group

    def _query(self, b: Any, k: Any, c: Any, g: Any, q: Any, first: Any, last: Any) -> Any:
        return k * self._group + g, _clamp(q, first[b, c], last[b, c])

    def q(self, shape: Any) -> Any:
        """Returns the block of q or do, [B, H, S, width]."""
        return (1, 1, self._size, shape[3]), lambda *ids: (ids[0], *self._query(*ids), 0)

    def kv(self, shape: Any) -> Any:
        """Returns the block of k or v, [B, K, T, width]."""
        return (1, 1, self._size, shape[3]), lambda b, k, c, *_: (b, k, c, 0)

    def token(self, shape: Any) -> Any:
        """Returns the block of the queries' ranges, [B, 1, S]."""
        return (1, 1, self._size), lambda *ids: (ids[0], 0, self._query(*ids)[1])

    def row(self, shape: Any) -> Any:
        """Returns the block of lse or delta, [B, H, 1, S]."""

        def index(*ids: Any) -> Any:
            head, block = self._query(*ids)
            return ids[0], head, 0, block

        return (1, 1, 1, self._size), index


def block_ranges(ranges: TokenRanges, size: int) -> tuple[jax.Array, jax.Array]:
    """Returns, for each block, the range [first, last) of blocks that any of its tokens needs."""
    first_BQ = ranges.start_BS[:, ::size] // size
    last_BQ = -(-ranges.stop_BS[:, size - 1 :: size] // size)
    return first_BQ, last_BQ


def _clamp(index: Any, first: Any, last: Any) -> Any:
    """Clamps a block index to the range, so that no other block is copied to VMEM."""
    return jnp.maximum(jnp.minimum(index, last - 1), jnp.minimum(first, jnp.maximum(last - 1, 0)))


def run_kernel(
    kernel: Callable[..., None],
    *,
    name: str,
    interpret: bool,
    grid: tuple[int, ...],
    prefetch: tuple[jax.Array, jax.Array],
    arrays: list[tuple[SpecOf, jax.Array]],
    results: list[tuple[SpecOf, tuple[int, ...]]],
    scratch: list[tuple[int, int]],
) -> Any:
    """Calls a kernel; each array, and the shape of each result, comes with its block spec."""
    from jax.experimental import pallas
    from jax.experimental.pallas import tpu as library

    specs = [pallas.BlockSpec(*spec(array.shape)) for spec, array in arrays]
    semantics: list[Literal["parallel", "arbitrary"]] = ["parallel"] * 3
    semantics += ["arbitrary"] * (len(grid) - 3)
    return pallas.pallas_call(
        kernel,
        grid_spec=library.PrefetchScalarGridSpec(
            num_scalar_prefetch=2,
            grid=grid,
            in_specs=specs,
            out_specs=[pallas.BlockSpec(*spec(shape)) for spec, shape in results],
            scratch_shapes=[library.VMEM(shape, jnp.float32) for shape in scratch],
        ),
        out_shape=[jax.ShapeDtypeStruct(shape, jnp.float32) for _, shape in results],
        compiler_params=library.CompilerParams(dimension_semantics=semantics),
        interpret=interpret,
        name=name,
    )(*prefetch, *(array for _, array in arrays))
