"""KV caches: the keys and values of earlier calls. Training uses `NoKVCache`.

W value head dim, beside the letters of all layers.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, Protocol, runtime_checkable

import jax
import jax.numpy as jnp

from dovetail.config import REQUIRED, ConfigError
from dovetail.config import Config as AnyConfig
from dovetail.kernels.attention import Mask, attention, gather_blocks
from dovetail.layers.checks import require_positive
from dovetail.layers.context import TokenContext
from dovetail.module import Module, current_path


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class KeyValues:
    """The keys and values that queries attend to, with their positions and segment ids.

    `aligned` promises that query i and key i are the same token, so a kernel may skip blocks by
    index. `complete` promises that no later call adds keys, as for an encoder's output, so that
    any mask may be used. Both are static, so that a layer can pass its keys and values on.

    With a block table, keys and values are pools of blocks (`PagedKVCache`).
    """

    k_BTKD: jax.Array
    v_BTKW: jax.Array
    context_BT: TokenContext
    aligned: bool = field(metadata={"static": True})
    complete: bool = field(default=False, metadata={"static": True})
    block_table_BN: jax.Array | None = None

    def gathered(self, context: TokenContext) -> KeyValues:
        """Returns the same without a block table: each row's own keys and values.

        What is after the queries is zeros: a block may hold what another sequence left there.
        """
        if self.block_table_BN is None:
            return self
        last_B1 = context.positions_BS.max(axis=1, keepdims=True)
        is_written_BT = self.context_BT.segment_ids_BS > 0
        is_read_BT = is_written_BT & (self.context_BT.positions_BS <= last_B1)
        k_BTKD, v_BTKW = (
            jnp.where(is_read_BT[..., None, None], gather_blocks(pool, self.block_table_BN), 0)
            for pool in (self.k_BTKD, self.v_BTKW)
        )
        return replace(self, k_BTKD=k_BTKD, v_BTKW=v_BTKW, block_table_BN=None)


class KVCache(Protocol):
    """Appends new keys and values, and returns all that the queries attend to.

    Tokens with segment id 0 are not attended to. Unless the context is contiguous, they may be
    anywhere in a sequence.
    """

    def __call__(self, k_BSKD: jax.Array, v_BSKW: jax.Array, context: TokenContext, /) -> KeyValues:
        """Returns the cached keys and values, the new ones included."""
        ...


@runtime_checkable
class ScoreScale(Protocol):
    """Computes the softmax scale from the head dim."""

    def __call__(self, head_width: int, /) -> float:
        """Returns the scale."""
        ...


def attend(
    q_BSHD: jax.Array,
    kv: KeyValues,
    context: TokenContext,
    mask: Mask,
    where: str,
    scale: float | ScoreScale | None = None,
    **options: Any,
) -> jax.Array:
    """Attends to the keys and values.

    Args:
        q_BSHD: the queries.
        kv: the keys and values.
        context: positions and segment ids of the queries.
        mask: which keys a query may attend to.
        where: the name of the mask's field, for the error.
        scale: the softmax scale; None is 1 / sqrt(head dim).
        options: further arguments of `attention`.
    """
    if not (kv.aligned or kv.complete or mask.causal):
        raise ConfigError(
            f"{where}: {mask} attends to later tokens, which a KV cache does not hold yet. Decode "
            "with a causal mask, or run the whole sequence at once without a KV cache."
        )
    return attention(
        q_BSHD,
        kv.k_BTKD,
        kv.v_BTKW,
        mask=mask,
        q_positions_BS=context.positions_BS,
        kv_positions_BT=kv.context_BT.positions_BS if kv.block_table_BN is None else None,
        q_segment_ids_BS=context.segment_ids_BS,
        kv_segment_ids_BT=kv.context_BT.segment_ids_BS,
        aligned=kv.aligned,
        block_table_BN=kv.block_table_BN,
        scale=scale(q_BSHD.shape[-1]) if callable(scale) else scale,
        **options,
    )


class UncachedKV(Module):
    """Stores nothing, in decoding too: for an encoder, which gets its whole sequence in one call.

    So its mask need not be causal.
    """

    def __call__(self, k_BSKD: jax.Array, v_BSKW: jax.Array, context: TokenContext) -> KeyValues:
        """Returns its input."""
        return KeyValues(k_BSKD, v_BSKW, context, aligned=True)


class NoKVCache(Module):
    """Stores nothing in training; decoding replaces it by a KV cache."""

    class Config(Module.Config["NoKVCache"]):
        def decoding_cache(self, length: int) -> AnyConfig[KVCache]:
            """Returns a contiguous KV cache."""
            return ContiguousKVCache.Config(length=length)

    def __call__(self, k_BSKD: jax.Array, v_BSKW: jax.Array, context: TokenContext) -> KeyValues:
        """Returns its input."""
        return KeyValues(k_BSKD, v_BSKW, context, aligned=True)


class BaseKVCache(Module):
    """The base of KV caches that write each token to a slot of an array.

    Slots of tokens that were hidden have segment id 0: the cache stores the segment ids, unless the
    context promises that there are no such slots (`TokenContext.contiguous`). A subclass says how
    large the arrays are, which slot a token has, and what the queries attend to.
    """

    class Config(Module.Config["BaseKVCache"]):
        """The maximum number of tokens per sequence."""

        length: int = REQUIRED

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        require_positive(config, "length")
        self.length = config.length

    def __call__(self, k_BSKD: jax.Array, v_BSKW: jax.Array, context: TokenContext) -> KeyValues:
        """Writes the new tokens to their slots of the KV cache, except padding (segment 0)."""
        is_first = self.read_cache("keys") is None
        keys = self._write("keys", k_BSKD, context)
        values = self._write("values", v_BSKW, context)
        segment_ids = self._write_segment_ids(is_first, context)
        if is_first:  # prefill: all keys are in this call, so the training kernels apply
            return KeyValues(k_BSKD, v_BSKW, context, aligned=True)
        return self._key_values(keys, values, segment_ids, context)

    def _shape(self, num_rows: int) -> tuple[int, ...]:
        """Returns the axes of the slots, for a number of rows."""
        raise NotImplementedError

    def _slots(self, context: TokenContext) -> tuple[jax.Array, ...]:
        """Returns the index of each token's slot; out of range for a token that is not written."""
        raise NotImplementedError

    def _key_values(
        self, k: jax.Array, v: jax.Array, segment_ids: jax.Array | None, context: TokenContext
    ) -> KeyValues:
        """Returns what the queries attend to; without segment ids every slot is written."""
        raise NotImplementedError

    def _write_segment_ids(self, is_first: bool, context: TokenContext) -> jax.Array | None:
        """Caches the segment ids, from the first call on; None if every slot is written."""
        is_stored = self.read_cache("segment_ids") is not None
        if is_stored or (is_first and not context.contiguous):
            return self._write("segment_ids", context.segment_ids_BS, context)
        if not context.contiguous:
            raise ConfigError(
                f"{current_path()}: a layer hides tokens from this {type(self).__name__}, which "
                "does not know which of its slots are written, because its first call had a "
                "contiguous context. Hide tokens from the first call on (`context.hide`), or from "
                "none."
            )
        return None

    def _write(self, name: str, new: jax.Array, context: TokenContext) -> jax.Array:
        """Writes [B, S, ...] to the slots of a cached array."""
        past = self.read_cache(name)
        if past is None:
            past = jnp.zeros((*self._shape(new.shape[0]), *new.shape[2:]), new.dtype)
        # A scatter out of range is dropped.
        slots = self._slots(context)
        updated: jax.Array = past.at[slots].set(new.astype(past.dtype), mode="drop")
        self.write_cache(name, updated)
        return updated


class ContiguousKVCache(BaseKVCache):
    """A KV cache with one contiguous array per sequence; the token at position p is in slot p.

    Each row holds one sequence, from an empty cache. Slots that are not written yet have positions
    after every query, so a causal mask hides them; other masks are refused. The caller keeps
    positions below the length: a token beyond it is dropped.
    """

    def _shape(self, num_rows: int) -> tuple[int, ...]:
        return num_rows, self.length

    def _slots(self, context: TokenContext) -> tuple[jax.Array, ...]:
        slots_BS = jnp.where(context.segment_ids_BS > 0, context.positions_BS, self.length)
        return jnp.arange(slots_BS.shape[0])[:, None], slots_BS

    def _key_values(
        self, k: jax.Array, v: jax.Array, segment_ids: jax.Array | None, context: TokenContext
    ) -> KeyValues:
        slots = jnp.broadcast_to(jnp.arange(self.length), k.shape[:2])
        segment_ids_BT = jnp.ones_like(slots) if segment_ids is None else segment_ids
        return KeyValues(k, v, TokenContext(slots, segment_ids_BT), aligned=False)
