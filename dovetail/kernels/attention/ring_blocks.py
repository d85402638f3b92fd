"""Pieces of a ring by XLA's operations, a block of scores at a time: any mask, map, bias or weight.

B batch, S queries, T keys, H heads, K key-value heads, G heads that share one, D width of queries
and keys, W of values.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from dovetail.kernels.attention.flash import Rows
from dovetail.kernels.attention.online import Seen, closed, look, seen_nothing
from dovetail.kernels.attention.ring_layouts import RingLayout
from dovetail.kernels.attention.ring_pieces import Mixed, Pieces, piece_op
from dovetail.kernels.attention.scores import Places, Rule, allowed_in_block, block_gradients
from dovetail.kernels.attention.shapes import by_head, from_heads, to_heads
from dovetail.kernels.registry import current_platform

# Queries of a block, and keys: no more scores than these are in memory at once.
BLOCK = 512


class Tokens(NamedTuple):
    """The positions, segments and indices of a range of tokens."""

    positions_BS: jax.Array
    segments_BS: jax.Array
    index_1S: jax.Array


# Where arrays have their tokens, with the heads in front.
TOKEN_AXES: Any = Tokens._make((1, 1, 1))
QUERY_AXES, KEY_AXES = (3, TOKEN_AXES), (2, 2, TOKEN_AXES)


def _is_slow(*_: Any, **__: Any) -> bool:
    return current_platform() != "cpu"


@piece_op.register("reference", slow=_is_slow)
def blocks(*_: Any, rule: Rule, layout: RingLayout) -> Pieces:
    """Returns the passes over blocks."""
    return Pieces(_describe, _forward, _backward, rule, layout)


def _describe(pieces: Pieces, positions_BS: jax.Array, segments_BS: jax.Array | None) -> Tokens:
    layout = pieces.layout
    if segments_BS is None:
        segments_BS = jnp.ones_like(positions_BS)
    index_S = layout.index(jax.lax.axis_index(layout.axes))
    positions_BS, segments_BS = (layout.arrange(one, 1) for one in (positions_BS, segments_BS))
    return Tokens(positions_BS, segments_BS, index_S[None])


def _forward(
    pieces: Pieces,
    query_BSHD: jax.Array,
    key_BTKD: jax.Array,
    value_BTKW: jax.Array,
    queries: Tokens,
    keys: Tokens,
) -> Mixed:
    rule, value_width = pieces.rule, value_BTKW.shape[3]
    query, *keys_and_values = by_head(query_BSHD, key_BTKD, value_BTKW)
    there = _blocks((*keys_and_values, keys), KEY_AXES)

    def block(some: tuple[jax.Array, Tokens]) -> tuple[jax.Array, jax.Array]:
        query_BKGSD, here = some

        def step(seen: Seen, keys: Any) -> tuple[Seen, None]:
            judged = _judged(rule, here, keys[2])
            return look(rule, *judged, seen, query_BKGSD, *keys[:2]), None

        nothing = seen_nothing(query_BKGSD.shape[:-1], value_width)
        return closed(rule, jax.lax.scan(step, nothing, there)[0], None)

    found = jax.lax.map(block, _blocks((query, queries), QUERY_AXES))
    mixed_BKGSW, log_BKGS = _joined(found, (3, 3))
    batch, _, heads, _ = query_BSHD.shape
    return Mixed(from_heads(mixed_BKGSW), log_BKGS.reshape(batch, heads, -1))


def _backward(
    pieces: Pieces,
    query_BSHD: jax.Array,
    key_BTKD: jax.Array,
    value_BTKW: jax.Array,
    queries: Tokens,
    keys: Tokens,
    rows: Rows,
) -> tuple[jax.Array, jax.Array, jax.Array]:
    rule, kv_heads = pieces.rule, key_BTKD.shape[2]
    query, *keys_and_values = by_head(query_BSHD, key_BTKD, value_BTKW)
    shape = query.shape[:-1]
    gradients = to_heads(rows.gradient_BSHW, kv_heads)
    given = (gradients, rows.log_BHS.reshape(shape), rows.mean_BHS.reshape(shape))
    here = _blocks((query, queries, given), (*QUERY_AXES, (3, 3, 3)))
    there = _blocks((*keys_and_values, keys), KEY_AXES)

    def block(to_keys: Any, some: Any) -> Any:
        query_BKGSD, queries, given = some

        def step(to_query: jax.Array, keys: Any) -> Any:
            judged = _judged(rule, queries, keys[2])
            found = block_gradients(rule, *judged, query_BKGSD, *keys[:2], *given)
            return to_query + found[0], found[1:]

        to_query, more = jax.lax.scan(step, jnp.zeros(query_BKGSD.shape), there)
        return jax.tree.map(jnp.add, to_keys, more), to_query

    nothing = tuple(jnp.zeros(part.shape) for part in there[:2])
    to_keys, to_query = jax.lax.scan(block, nothing, here)
    to_key, to_value = (part.swapaxes(1, 2) for part in _joined(to_keys, (2, 2)))
    return from_heads(_joined(to_query, 3)), to_key, to_value


def _judged(rule: Rule, queries: Tokens, keys: Tokens) -> tuple[Places, jax.Array]:
    """Returns where the queries and keys of a block stand, and which pairs are allowed."""
    places = Places(queries.positions_BS, keys.positions_BS, queries.segments_BS, keys.segments_BS)
    return places, allowed_in_block(rule, places, queries.index_1S[0], keys.index_1S[0])


def block_size(length: int) -> int:
    """Returns how many tokens are a block: as many as divide a range, up to a limit."""
    return next(size for size in range(min(length, BLOCK), 0, -1) if length % size == 0)


def _blocks(arrays: Any, axes: Any) -> Any:
    """Splits the tokens of arrays into blocks, which stand along a first axis."""

    def split(array: jax.Array, axis: int) -> jax.Array:
        size = block_size(array.shape[axis])
        shape = (*array.shape[:axis], -1, size, *array.shape[axis + 1 :])
        return jnp.moveaxis(array.reshape(shape), axis, 0)

    return jax.tree.map(split, arrays, axes)


def _joined(blocks: Any, axes: Any) -> Any:
    """Undoes `_blocks`."""

    def join(array: jax.Array, axis: int) -> jax.Array:
        moved = jnp.moveaxis(array, 0, axis)
        return moved.reshape(*moved.shape[:axis], -1, *moved.shape[axis + 2 :])

    return jax.tree.map(join, blocks, axes)
