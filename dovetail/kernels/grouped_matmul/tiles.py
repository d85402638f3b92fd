"""Which tiles of sorted rows belong to which groups: what a kernel goes by, in place of a search.

Tiles are cut at equal distances. One through which groups meet is visited once for each of them.

N rows, X groups, T visits.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp


class Visits(NamedTuple):
    """Tile by tile, whose rows are to be computed; what is left over has none.

    Attributes:
        tile_T: the number of the tile.
        group_T: the group.
        first_T: the group's first row, counted from the beginning of all.
        stop_T: one more than its last; equal to the first where nothing is to be done.
    """

    tile_T: jax.Array
    group_T: jax.Array
    first_T: jax.Array
    stop_T: jax.Array


def visits(sizes_X: jax.Array, rows: int, tile: int) -> Visits:
    """Returns the visits to all tiles. Every group but the first may share a tile: T is fixed."""
    stops_X = jnp.cumsum(sizes_X)
    starts_X = stops_X - sizes_X
    counts_X = jnp.where(sizes_X > 0, (stops_X - 1) // tile - starts_X // tile + 1, 0)
    ends_X = jnp.cumsum(counts_X)
    number_T = jnp.arange(rows // tile + sizes_X.size - 1)
    is_one_T = number_T < ends_X[-1]
    group_T = jnp.where(is_one_T, jnp.searchsorted(ends_X, number_T, side="right"), 0)
    inside_T = number_T - (ends_X - counts_X)[group_T]
    tile_T = jnp.where(is_one_T, starts_X[group_T] // tile + inside_T, 0)
    first_T = jnp.where(is_one_T, starts_X[group_T], 0)
    stop_T = jnp.where(is_one_T, stops_X[group_T], 0)
    return Visits(*(array.astype(jnp.int32) for array in (tile_T, group_T, first_T, stop_T)))
