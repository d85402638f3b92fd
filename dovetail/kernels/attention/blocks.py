"""How blockwise attention splits the queries, and which keys each block can do without."""

from __future__ import annotations

from typing import NamedTuple

from dovetail.kernels.attention.masks import Mask


class Block(NamedTuple):
    """A range of queries and the range of keys that they can see."""

    start: int
    stop: int
    key_start: int
    key_stop: int


def plan_blocks(queries: int, keys: int, mask: Mask, aligned: bool) -> tuple[Block, ...]:
    """Splits the queries, and says which keys each block needs.

    Small blocks skip more and need less memory, but each one makes the program longer: 8 blocks of
    64 to 256, then 16 blocks however long the sequence is.
    """
    size = max(min(256, _divided(queries, 8)), _divided(queries, 16), 64)
    size = 64 * _divided(size, 64)
    by_index = aligned and mask.causal
    reach = mask.reach if by_index else None
    blocks = []
    for start in range(0, queries, size):
        stop = min(start + size, queries)
        key_start = 0 if reach is None else max(0, start - reach + 1)
        blocks.append(Block(start, stop, key_start, stop if by_index else keys))
    return tuple(blocks)


def _divided(number: int, by: int) -> int:
    """Divides, rounding up."""
    return -(-number // by)
