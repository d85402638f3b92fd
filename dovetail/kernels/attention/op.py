"""Attention: the record of a call, the function that layers call, and the two ops behind it.

B batch, S queries, T keys, H heads, K KV heads, D width of queries and keys, W width of values, N
blocks of a row.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp

from dovetail.kernels.attention.masks import Mask
from dovetail.kernels.attention.paged import gather_blocks, paged_positions, paged_segment_ids
from dovetail.kernels.dispatch import Op
from dovetail.kernels.score_maps import ScoreBias, ScoreMap

# `__init__.py` lists the implementations of both.
attention_op = Op("attention")
"""From an `AttentionCall` to the output."""
decode_attention_op = Op("decode_attention")
"""The same for a call that decodes (`AttentionCall.decodes`)."""

# Up to this many queries nothing beats computing all scores at once (decoding has one query).
FEW_QUERIES = 127

# Every implementation tags its output with this name, so that a remat policy can save it. One with
# its own backward pass tags what that pass reads, so the tag cannot be put on from outside.
OUTPUT_TAG = "attention_output"

TOKEN_FIELDS = ("q_positions_BS", "kv_positions_BT", "q_segment_ids_BS", "kv_segment_ids_BT")
STATIC = {"static": True}


@jax.tree_util.register_dataclass
@dataclass(frozen=True, kw_only=True, eq=False)
class AttentionCall:
    """One attention call: the argument of implementations, and of their `supports`.

    It is a pytree: arrays are its leaves, and the other fields are static. See `attention` for the
    fields. Kernels that mask by index get neither positions nor the segment ids of the keys.

    With a block table, `k_BTKD` and `v_BTKW` are pools of blocks: [blocks, block size, K, width].
    Positions and segment ids of the keys are those of each row all the same: T is N * block size.
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
    block_table_BN: jax.Array | None = None
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
    def decodes(self) -> bool:
        """Whether the queries attend to a KV cache: one with a block table, or with few queries."""
        has_few_queries = self.q_BSHD.shape[1] <= FEW_QUERIES
        return self.block_table_BN is not None or (not self.aligned and has_few_queries)

    @property
    def bias_name(self) -> str:
        """The score bias in messages: arrays are not printed."""
        is_static = not jax.tree.leaves(self.score_bias)
        return str(self.score_bias) if is_static else type(self.score_bias).__name__

    def with_qkv(self, q: Any, k: Any, v: Any, **changes: Any) -> AttentionCall:
        """Returns the call with other queries, keys and values."""
        return dataclasses.replace(self, q_BSHD=q, k_BTKD=k, v_BTKW=v, **changes)

    def contiguous(self) -> AttentionCall:
        """Returns the call without a block table: keys and values are gathered from their blocks.

        Those that no query attends to are zeros. A block may hold what another sequence left there,
        and NaN times a probability of 0 is NaN.
        """
        if self.block_table_BN is None:
            return self
        is_attended_BT = self.allowed(q_axis=1).any(axis=1)
        k, v = (
            jnp.where(is_attended_BT[..., None, None], gather_blocks(pool, self.block_table_BN), 0)
            for pool in self.qkv[1:]
        )
        return self.with_qkv(self.q_BSHD, k, v, block_table_BN=None)

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
    k: jax.Array,
    v: jax.Array,
    *,
    mask: Mask,
    q_positions_BS: jax.Array,
    kv_positions_BT: jax.Array | None = None,
    q_segment_ids_BS: jax.Array | None = None,
    kv_segment_ids_BT: jax.Array | None = None,
    aligned: bool,
    scale: float | None = None,
    score_map: ScoreMap | None = None,
    score_bias: ScoreBias | None = None,
    sinks_H: jax.Array | None = None,
    score_activation: ScoreMap | None = None,
    block_table_BN: jax.Array | None = None,
) -> jax.Array:
    """Computes `softmax(scale * q @ k.T) @ v` under a mask.

    Args:
        q_BSHD: the queries. H is a multiple of K; consecutive heads share a KV head (GQA).
        k: the keys [B, T, K, D]; with a block table, a pool of blocks [blocks, block size, K, D].
        v: the values, like the keys; their width W may differ.
        mask: which keys a query may attend to, by position.
        q_positions_BS: the position of each query within its segment.
        kv_positions_BT: the position of each key within its segment; None with a block table.
        q_segment_ids_BS: if given, a query attends only to keys of its own segment. Segment 0 is
            padding: it attends to nothing, and nothing attends to it.
        kv_segment_ids_BT: the segment ids of the keys; given together with those of the queries.
            With a block table a row is one segment: 0 marks slots that are not written. None: all
            slots that the mask allows are written.
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
        block_table_BN: if given, keys and values are paged (`paged.py`): the key of row b at
            position p is in block `block_table_BN[b, p // block size]`, at p % block size. An entry
            outside of the pool, such as -1, is not allocated: nothing attends to it. The mask must
            hide what is allocated but not written yet, as a causal one does.

    Returns:
        [B, S, H, W] in the dtype of the queries. A query that may attend to no key gets zeros. The
        softmax is computed in float32 whatever the dtype of the inputs.
    """
    if block_table_BN is not None:
        _check_block_table(q_BSHD, k, block_table_BN, aligned, kv_positions_BT)
        kv_positions_BT = paged_positions(k, block_table_BN)
        kv_segment_ids_BT = paged_segment_ids(k, block_table_BN, kv_segment_ids_BT)
        if q_segment_ids_BS is None:
            q_segment_ids_BS = jnp.ones_like(q_positions_BS)
        else:
            q_segment_ids_BS = (q_segment_ids_BS != 0).astype(jnp.int32)
    if kv_positions_BT is None:
        raise _wrong("kv_positions_BT, since there is no block table", "None")
    call = AttentionCall(
        q_BSHD=q_BSHD,
        k_BTKD=k,
        v_BTKW=v,
        q_positions_BS=q_positions_BS,
        kv_positions_BT=kv_positions_BT,
        q_segment_ids_BS=q_segment_ids_BS,
        kv_segment_ids_BT=kv_segment_ids_BT,
        sinks_H=sinks_H,
        score_bias=score_bias,
        block_table_BN=block_table_BN,
        mask=mask,
        aligned=aligned,
        scale=q_BSHD.shape[-1] ** -0.5 if scale is None else scale,
        score_map=score_map,
        score_activation=score_activation,
    )
    _check(call)
    o_BSHW: jax.Array = (decode_attention_op if call.decodes else attention_op)(call)
    return o_BSHW


def _check_block_table(
    q_BSHD: jax.Array,
    k: jax.Array,
    block_table_BN: jax.Array,
    aligned: bool,
    kv_positions_BT: jax.Array | None,
) -> None:
    shape, dtype = block_table_BN.shape, block_table_BN.dtype
    if len(shape) != 2 or shape[0] != len(q_BSHD) or not jnp.issubdtype(dtype, jnp.integer):
        raise _wrong(
            f"block_table_BN of shape ({len(q_BSHD)}, blocks of a row) and integers",
            f"{shape} {dtype}",
        )
    if k.ndim != 4 or not k.size:
        raise _wrong("a pool of keys [blocks, block size, KV heads, width]", f"{k.shape}")
    if aligned:
        raise _wrong("aligned=False with a block table", "aligned=True")
    if kv_positions_BT is not None:
        raise _wrong("no kv_positions_BT beside a block table, which implies them", "some")


def _check(call: AttentionCall) -> None:
    (q_BSHD, k, v), is_paged = call.qkv, call.block_table_BN is not None
    if q_BSHD.ndim != 4 or k.ndim != 4:
        raise _wrong("four axes", f"q {q_BSHD.shape} and k {k.shape}")
    batch, queries, heads, width = q_BSHD.shape
    rows, keys, kv_heads = k.shape[:3]
    if (rows != batch and not is_paged) or k.shape[3] != width or v.ndim != 4:
        raise _wrong(
            f"k with the {'' if is_paged else 'batch and '}width of q, and v of four axes",
            f"q {q_BSHD.shape}, k {k.shape} and v {v.shape}",
        )
    if v.shape[:3] != k.shape[:3]:
        raise _wrong("k and v of one shape but for the width", f"k {k.shape} and v {v.shape}")
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
    keys = call.kv_positions_BT.shape[-1] if is_paged else keys
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
