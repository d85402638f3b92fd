"""Blocks of a Pallas kernel for TPUs that goes through what ranges leave.

Which blocks have anything to see is known before a kernel starts. With others nothing is computed,
and none of them is fetched, but for one where there is nothing to see at all.

B batch, S queries, T keys, H heads, K key-value heads, Q and C how many blocks there are of queries
and of keys.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import jax
import jax.numpy as jnp

from dovetail.kernels.attention.ranges import Ranges

Where = Callable[[Any], Any]
"""From an array's shape to that of its blocks, and to which of them a program takes."""


class ByQueries:
    """Where arrays have the blocks of a program that goes through keys, over [B, H, Q, C]."""

    def __init__(self, size: int, shared: int) -> None:
        """Takes the tokens of a block, and how many heads share one for keys and values."""
        self._size, self._shared = size, shared

    def query(self, shape: Any) -> Any:
        """Takes queries [B, H, S, width]."""
        return (1, 1, self._size, shape[3]), lambda b, h, q, c, *_: (b, h, q, 0)

    def key(self, shape: Any) -> Any:
        """Takes keys or values [B, K, T, width], of the head that is shared."""

        def index(b: Any, h: Any, q: Any, c: Any, first: Any, last: Any) -> Any:
            return b, jax.lax.div(h, self._shared), _nearest(c, first[b, q], last[b, q]), 0

        return (1, 1, self._size, shape[3]), index

    def token(self, shape: Any) -> Any:
        """Takes what is told of the queries' tokens, [B, 1, S]."""
        return (1, 1, self._size), lambda b, h, q, c, *_: (b, 0, q)

    def row(self, shape: Any) -> Any:
        """Takes a number for each query, [B, H, 1, S]."""
        return (1, 1, 1, self._size), lambda b, h, q, c, *_: (b, h, 0, q)

    def turned(self, shape: Any) -> Any:
        """Takes a column for each query, [B, H, width, S]."""
        return (1, 1, shape[2], self._size), lambda b, h, q, c, *_: (b, h, 0, q)


class ByKeys:
    """The same of a program that goes through heads and queries, over [B, K, C, H / K, Q]."""

    def __init__(self, size: int, shared: int) -> None:
        """Takes the tokens of a block, and how many heads share one for keys and values."""
        self._size, self._shared = size, shared

    def _query(self, b: Any, k: Any, c: Any, g: Any, q: Any, first: Any, last: Any) -> Any:
        return k * self._shared + g, _nearest(q, first[b, c], last[b, c])

    def query(self, shape: Any) -> Any:
        """Takes queries [B, H, S, width]."""
        return (1, 1, self._size, shape[3]), lambda *at: (at[0], *self._query(*at), 0)

    def key(self, shape: Any) -> Any:
        """Takes keys or values [B, K, T, width]."""
        return (1, 1, self._size, shape[3]), lambda b, k, c, *_: (b, k, c, 0)

    def token(self, shape: Any) -> Any:
        """Takes what is told of the queries' tokens, [B, 1, S]."""
        return (1, 1, self._size), lambda *at: (at[0], 0, self._query(*at)[1])

    def row(self, shape: Any) -> Any:
        """Takes a number for each query, [B, H, 1, S]."""

        def index(*at: Any) -> Any:
            head, block = self._query(*at)
            return at[0], head, 0, block

        return (1, 1, 1, self._size), index


def ends_of(ranges: Ranges, size: int) -> tuple[jax.Array, jax.Array]:
    """Returns for each block which blocks any of it sees: the first, and the first after those."""
    first_BQ = ranges.start_BS[:, ::size] // size
    last_BQ = -(-ranges.stop_BS[:, size - 1 :: size] // size)
    return first_BQ, last_BQ


def _nearest(turn: Any, first: Any, last: Any) -> Any:
    """Returns a block that is needed, so that none is fetched that is not."""
    return jnp.maximum(jnp.minimum(turn, last - 1), jnp.minimum(first, jnp.maximum(last - 1, 0)))


def call(
    kernel: Callable[..., None],
    *,
    name: str,
    interpret: bool,
    grid: tuple[int, ...],
    ends: tuple[jax.Array, jax.Array],
    arrays: list[tuple[Where, jax.Array]],
    results: list[tuple[Where, tuple[int, ...]]],
    scratch: list[tuple[int, int]],
) -> Any:
    """Calls a kernel: each array, and each result's shape, comes with where its blocks are."""
    from jax.experimental import pallas
    from jax.experimental.pallas import tpu as library

    specs = [pallas.BlockSpec(*at(array.shape)) for at, array in arrays]
    semantics: list[Literal["parallel", "arbitrary"]] = ["parallel"] * 3
    semantics += ["arbitrary"] * (len(grid) - 3)
    return pallas.pallas_call(
        kernel,
        grid_spec=library.PrefetchScalarGridSpec(
            num_scalar_prefetch=2,
            grid=grid,
            in_specs=specs,
            out_specs=[pallas.BlockSpec(*at(shape)) for at, shape in results],
            scratch_shapes=[library.VMEM(shape, jnp.float32) for shape in scratch],
        ),
        out_shape=[jax.ShapeDtypeStruct(shape, jnp.float32) for _, shape in results],
        compiler_params=library.CompilerParams(dimension_semantics=semantics),
        interpret=interpret,
        name=name,
    )(*ends, *(array for _, array in arrays))
