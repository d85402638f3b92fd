"""Pieces of a ring on TPUs, by kernels over ranges: splash gives no gradients for a part of a row.

B batch, S queries, T keys, H heads, K key-value heads, D width of queries and keys, W of values.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from dovetail.kernels.attention import tpu_kernels as kernels
from dovetail.kernels.attention.flash import Rows
from dovetail.kernels.attention.ring_layouts import RingLayout
from dovetail.kernels.attention.ring_pieces import Mixed, Pieces, piece_op
from dovetail.kernels.attention.ring_ranges import Tokens, among, describe, refusal_of
from dovetail.kernels.attention.scores import Rule
from dovetail.kernels.attention.splash import LANES, block_size
from dovetail.kernels.registry import is_interpreted

TYPES = (jnp.bfloat16, jnp.float32)


def _supports(
    query_BSHD: jax.Array,
    key_BTKD: jax.Array,
    value_BTKW: jax.Array,
    *,
    rule: Rule,
    layout: RingLayout,
) -> str | None:
    types = {str(array.dtype) for array in (query_BSHD, key_BTKD, value_BTKW)}
    if query_BSHD.dtype not in TYPES or len(types) > 1:
        return f"it takes bfloat16 or float32, not {' and '.join(sorted(types))}"
    return refusal_of(rule, layout, LANES)


@piece_op.register("pallas", platforms=("tpu",), supports=_supports, before="reference")
def pallas(*_: Any, rule: Rule, layout: RingLayout) -> Pieces:
    """Returns the passes by the kernels."""
    return Pieces(describe, _forward, _backward, rule, layout, is_interpreted())


def _forward(
    pieces: Pieces,
    query_BSHD: jax.Array,
    key_BTKD: jax.Array,
    value_BTKW: jax.Array,
    queries: Tokens,
    keys: Tokens,
) -> Mixed:
    inputs = (query_BSHD, key_BTKD, value_BTKW)
    return Mixed(*kernels.forward(_how(pieces, *inputs), *inputs, among(queries.seen, keys)))


def _backward(
    pieces: Pieces,
    query_BSHD: jax.Array,
    key_BTKD: jax.Array,
    value_BTKW: jax.Array,
    queries: Tokens,
    keys: Tokens,
    rows: Rows,
) -> tuple[jax.Array, jax.Array, jax.Array]:
    inputs = (query_BSHD, key_BTKD, value_BTKW)
    how = _how(pieces, *inputs)
    seen, seeing = among(queries.seen, keys), among(keys.seeing, queries)
    to_query_BSHD = kernels.query_gradients(how, *inputs, seen, rows)
    return to_query_BSHD, *kernels.key_gradients(how, *inputs, seen, seeing, rows)


def _how(
    pieces: Pieces, query_BSHD: jax.Array, key_BTKD: jax.Array, value_BTKW: jax.Array
) -> kernels.How:
    rule, width = pieces.rule, max(query_BSHD.shape[3], value_BTKW.shape[3])
    size = block_size(query_BSHD.shape[1], width, query_BSHD.dtype.itemsize)
    return kernels.How(rule.scale, rule.score_map, size, pieces.interpret)
