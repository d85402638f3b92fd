"""Pieces of a ring on GPUs, by the Triton kernels that `triton` runs on whole sequences.

B batch, S queries, T keys, H heads, K key-value heads, D width of queries and keys, W of values.
"""

from __future__ import annotations

from typing import Any

import jax

from dovetail.kernels.attention import triton_kernels as kernels
from dovetail.kernels.attention.flash import Rows
from dovetail.kernels.attention.ring_layouts import RingLayout
from dovetail.kernels.attention.ring_pieces import Mixed, Pieces, piece_op
from dovetail.kernels.attention.ring_ranges import Tokens, among, describe, refusal_of
from dovetail.kernels.attention.scores import Rule
from dovetail.kernels.attention.triton import arrays_refusal
from dovetail.kernels.registry import is_interpreted


def _supports(
    query_BSHD: jax.Array,
    key_BTKD: jax.Array,
    value_BTKW: jax.Array,
    *,
    rule: Rule,
    layout: RingLayout,
) -> str | None:
    refusal = arrays_refusal(query_BSHD, key_BTKD, value_BTKW)
    return refusal or refusal_of(rule, layout, kernels.LARGEST_BLOCK)


@piece_op.register("triton", platforms=("gpu",), supports=_supports, before="reference")
def triton(*_: Any, rule: Rule, layout: RingLayout) -> Pieces:
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
    seen = among(queries.seen, keys)
    inputs = (query_BSHD, key_BTKD, value_BTKW)
    return Mixed(*kernels.forward(_how(pieces), *inputs, seen, None))


def _backward(
    pieces: Pieces,
    query_BSHD: jax.Array,
    key_BTKD: jax.Array,
    value_BTKW: jax.Array,
    queries: Tokens,
    keys: Tokens,
    rows: Rows,
) -> tuple[jax.Array, jax.Array, jax.Array]:
    how, inputs = _how(pieces), (query_BSHD, key_BTKD, value_BTKW)
    seen, seeing = among(queries.seen, keys), among(keys.seeing, queries)
    to_query_BSHD = kernels.query_gradients(how, *inputs, seen, rows)
    return to_query_BSHD, *kernels.key_gradients(how, *inputs, seeing, rows)


def _how(pieces: Pieces) -> kernels.How:
    """Returns how the kernels compute: their results are added up, so they are not rounded."""
    rule = pieces.rule
    return kernels.How(rule.scale, rule.score_map, pieces.interpret, "float32")
