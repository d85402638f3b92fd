"""The attention op: the record of a call, the function that layers call, and the op behind it.

B batch, S queries, T keys, H heads, K KV heads, D width of queries and keys, W width of values.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp

from dovetail.kernels.attention.masks import Mask
from dovetail.kernels.registry import Op
from dovetail.kernels.score_maps import ScoreBias, ScoreMap

attention_op = Op("attention")  # `__init__.py` lists its implementations
"""From an `AttentionCall` to the output."""

# Every implementation tags its output with this name, so that a remat policy can save it. One with
# its own backward pass tags what that pass reads, so the tag cannot be put on from outside.
OUTPUT_TAG = "attention_output"

TOKEN_FIELDS = ("q_positions_BS", "kv_positions_BT", "q_segment_ids_BS", "kv_segment_ids_BT")
STATIC = {"static": True}


@jax.tree_util.register_dataclass
@dataclass(frozen=True, kw_only=True, eq=False)
class AttentionCall:
    """Everything of one call: what an implementation takes, and is asked whether it supports.

    It is a pytree: arrays are its leaves, and the other fields are static. See `attention` for the
    fields. Kernels that mask by index get neither positions nor the segment ids of the keys.
    """

    q_BSHD: jax.Array
    k_BTKD: jax.Array
    v_BTKW: jax.Array
    q_positions_BS: jax.Array
    kv_positions_BT: jax.Array
    q_segment_ids_BS: jax.Array | None = None
    kv_segment_ids_BT: jax.Array | None = None
    sinks_H: jax.Array | None = None
    score_bias: ScoreBias | None = None
    mask: Mask = field(metadata=STATIC)
    aligned: bool = field(metadata=STATIC)
    scale: float = field(metadata=STATIC)
    score_map: ScoreMap | None = field(default=None, metadata=STATIC)
    score_activation: ScoreMap | None = field(default=None, metadata=STATIC)

    @property
    def qkv(self) -> tuple[jax.Array, jax.Array, jax.Array]:
        """The queries, keys and values."""
        return self.q_BSHD, self.k_BTKD, self.v_BTKW

    @property
    def bias_name(self) -> str:
        """The score bias in messages: arrays are not printed."""
        is_static = not jax.tree.leaves(self.score_bias)
        return str(self.score_bias) if is_static else type(self.score_bias).__name__

    def with_qkv(self, q: Any, k: Any, v: Any, **changes: Any) -> AttentionCall:
        """Returns the call with other queries, keys and values."""
        return dataclasses.replace(self, q_BSHD=q, k_BTKD=k, v_BTKW=v, **changes)

    def without(self, *fields: str) -> AttentionCall:
        """Returns the call with None in some fields, for a function that does not read them."""
        nothing: dict[str, Any] = dict.fromkeys(fields)
        return dataclasses.replace(self, **nothing)

    def map_tokens(
        self, of_queries: Callable[[Any], Any], of_keys: Callable[[Any], Any]
    ) -> AttentionCall:
        """Returns the call with functions of its positions and segment ids, as of a block."""

        def of_ids(function: Callable[[Any], Any], ids: jax.Array | None) -> Any:
            return None if ids is None else function(ids)

        return dataclasses.replace(
            self,
            q_positions_BS=of_queries(self.q_positions_BS),
            kv_positions_BT=of_keys(self.kv_positions_BT),
            q_segment_ids_BS=of_ids(of_queries, self.q_segment_ids_BS),
            kv_segment_ids_BT=of_ids(of_keys, self.kv_segment_ids_BT),
        )

    def allowed(
        self,
        q_axis: int,
        q_index_S: jax.Array | None = None,
        kv_index_T: jax.Array | None = None,
    ) -> jax.Array:
        """Returns which queries may attend to which keys: by the mask, and by segment ids.

        Args:
            q_axis: the axis of the queries in the result: 1 for [B, S, T], 2 for [B, T, S].
            q_index_S: the indices of the queries in the sequence; None means from 0.
            kv_index_T: the indices of the keys.
        """
        tokens = self.map_tokens(
            lambda array: jnp.expand_dims(array, 3 - q_axis),
            lambda array: jnp.expand_dims(array, q_axis),
        )
        if self.aligned:
            index = jnp.arange(self.q_BSHD.shape[1]) if q_index_S is None else q_index_S
            q_index = index[:, None] if q_axis == 1 else index
            index = jnp.arange(self.k_BTKD.shape[1]) if kv_index_T is None else kv_index_T
            kv_index = index[:, None] if q_axis == 2 else index
        allowed = self.mask.allowed(tokens.q_positions_BS, tokens.kv_positions_BT)
        if self.aligned and self.mask.causal:
            allowed &= kv_index <= q_index
        q_segment_ids = tokens.q_segment_ids_BS
        if q_segment_ids is not None:
            allowed &= (q_segment_ids == tokens.kv_segment_ids_BT) & (q_segment_ids != 0)
        return allowed


def attention(
    q_BSHD: jax.Array,
    k_BTKD: jax.Array,
    v_BTKW: jax.Array,
    *,
    mask: Mask,
    q_positions_BS: jax.Array,
    kv_positions_BT: jax.Array,
    q_segment_ids_BS: jax.Array | None = None,
    kv_segment_ids_BT: jax.Array | None = None,
    aligned: bool,
    scale: float | None = None,
    score_map: ScoreMap | None = None,
    score_bias: ScoreBias | None = None,
    sinks_H: jax.Array | None = None,
    score_activation: ScoreMap | None = None,
) -> jax.Array:
    """Computes `softmax(scale * q @ k.T) @ v` under a mask.

    Args:
        q_BSHD: the queries. H is a multiple of K; consecutive heads share a KV head (GQA).
        k_BTKD: the keys.
        v_BTKW: the values, whose width may differ from that of the keys.
        mask: which keys a query may attend to, by position.
        q_positions_BS: the position of each query within its segment.
        kv_positions_BT: the position of each key within its segment.
        q_segment_ids_BS: if given, a query attends only to keys of its own segment. Segment 0 is
            padding: it attends to nothing, and nothing attends to it.
        kv_segment_ids_BT: the segment ids of the keys; given together with those of the queries.
        aligned: promises that S = T, that query i and key i are the same token of the same row, and
            that positions rise by one from token to token within a segment (within a row, where
            there are no segments). Then distances of indices equal distances of positions, and a
            kernel may mask by index.
        scale: the factor of the scores; None means 1 / sqrt(D).
        score_map: applied to each scaled score before the mask; None means nothing.
        score_bias: added to each score after the map; None means nothing. Arrays in it have
            gradients.
        sinks_H: if given, the attention sink of each head (https://arxiv.org/abs/2508.10925): a
            learned logit that joins only the softmax's denominator, like a key with value 0 that
            every query attends to. It is neither scaled nor mapped.
        score_activation: if given, this elementwise activation of the scores replaces the softmax
            (sigmoid attention); then there are no sinks.

    Returns:
        [B, S, H, W] in the dtype of the queries. A query that may attend to no key gets zeros. The
        softmax is computed in float32 whatever the dtype of the inputs.
    """
    call = AttentionCall(
        q_BSHD=q_BSHD,
        k_BTKD=k_BTKD,
        v_BTKW=v_BTKW,
        q_positions_BS=q_positions_BS,
        kv_positions_BT=kv_positions_BT,
        q_segment_ids_BS=q_segment_ids_BS,
        kv_segment_ids_BT=kv_segment_ids_BT,
        sinks_H=sinks_H,
        score_bias=score_bias,
        mask=mask,
        aligned=aligned,
        scale=q_BSHD.shape[-1] ** -0.5 if scale is None else scale,
        score_map=score_map,
        score_activation=score_activation,
    )
    _check(call)
    o_BSHW: jax.Array = attention_op(call)
    return o_BSHW


def _check(call: AttentionCall) -> None:
    q_BSHD, k_BTKD, v_BTKW = call.qkv
    if q_BSHD.ndim != 4 or k_BTKD.ndim != 4:
        raise _wrong("four axes", f"q {q_BSHD.shape} and k {k_BTKD.shape}")
    batch, queries, heads, width = q_BSHD.shape
    keys, kv_heads = k_BTKD.shape[1:3]
    if k_BTKD.shape != (batch, keys, kv_heads, width) or v_BTKW.ndim != 4:
        raise _wrong(
            "k with the batch and width of q, and v of four axes",
            f"q {q_BSHD.shape}, k {k_BTKD.shape} and v {v_BTKW.shape}",
        )
    if v_BTKW.shape[:3] != k_BTKD.shape[:3]:
        raise _wrong(
            "k and v of one shape but for the width",
            f"k {k_BTKD.shape} and v {v_BTKW.shape}",
        )
    if heads % kv_heads:
        raise _wrong("heads that are a multiple of KV heads", f"{heads} and {kv_heads}")
    if call.aligned and queries != keys:
        raise _wrong(
            "as many keys as queries, since aligned=True says they are the same tokens",
            f"{queries} queries and {keys} keys",
        )
    if (call.q_segment_ids_BS is None) != (call.kv_segment_ids_BT is None):
        given = "keys" if call.q_segment_ids_BS is None else "queries"
        raise _wrong(
            "segment ids of both queries and keys, or of neither", f"those of {given} only"
        )
    for name in TOKEN_FIELDS:
        array, shape = getattr(call, name), (batch, queries if name[0] == "q" else keys)
        if array is not None and (
            array.shape != shape or not jnp.issubdtype(array.dtype, jnp.integer)
        ):
            raise _wrong(f"{name} of shape {shape} and integers", f"{array.shape} {array.dtype}")
    _check_scores(call)


def _check_scores(call: AttentionCall) -> None:
    for leaf in jax.tree.leaves(call.score_bias):
        found = getattr(leaf, "dtype", type(leaf))
        if not jnp.issubdtype(found, jnp.floating):
            raise _wrong("a score bias that is a pytree of floats", f"{found} in {call.bias_name}")
    sinks_H, activation = call.sinks_H, call.score_activation
    if sinks_H is not None and activation is not None:
        raise _wrong("sinks of a softmax", f"sinks beside {activation}, which has no denominator")
    if sinks_H is not None and (
        sinks_H.shape != call.q_BSHD.shape[2:3] or not jnp.issubdtype(sinks_H.dtype, jnp.floating)
    ):
        raise _wrong(
            f"sinks_H of shape {call.q_BSHD.shape[2:3]} and floats",
            f"{sinks_H.shape} {sinks_H.dtype}",
        )


def _wrong(expected: str, got: str) -> ValueError:
    return ValueError(f"attention: expected {expected}, got {got}.")
