"""KV caches: the keys and values of earlier calls. Training uses `NoKVCache`.

W value head dim, beside the letters of all layers.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

import jax
import jax.numpy as jnp

from dovetail.config import REQUIRED, ConfigError
from dovetail.config import Config as AnyConfig
from dovetail.kernels.attention import Mask, attention
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
    """

    k_BTKD: jax.Array
    v_BTKW: jax.Array
    context_BT: TokenContext
    aligned: bool = field(metadata={"static": True})
    complete: bool = field(default=False, metadata={"static": True})


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
        kv_positions_BT=kv.context_BT.positions_BS,
        q_segment_ids_BS=context.segment_ids_BS,
        kv_segment_ids_BT=kv.context_BT.segment_ids_BS,
        aligned=kv.aligned,
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


class ContiguousKVCache(Module):
    """A KV cache with one contiguous array per sequence; the token at position p is in slot p.

    Each row holds one sequence, from an empty cache. Slots that are not written yet have positions
    after every query, so a causal mask hides them; other masks are refused. Slots of tokens that
    were hidden have segment id 0: the cache stores the segment ids, unless the context promises
    that there are no such slots (`TokenContext.contiguous`). The caller keeps positions below the
    length: a token beyond it is dropped.
    """

    class Config(Module.Config["ContiguousKVCache"]):
        """The maximum number of tokens per sequence."""

        length: int = REQUIRED

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        require_positive(config, "length")
        self.length = config.length

    def __call__(self, k_BSKD: jax.Array, v_BSKW: jax.Array, context: TokenContext) -> KeyValues:
        """Writes the new tokens to their slots of the KV cache, except padding (segment 0)."""
        is_first = self.read_cache("keys") is None
        k_BTKD = self._write("keys", k_BSKD, context)
        v_BTKW = self._write("values", v_BSKW, context)
        segment_ids_BT = self._write_segment_ids(is_first, context)
        if is_first:  # prefill: all keys are in this call, so the training kernels apply
            return KeyValues(k_BSKD, v_BSKW, context, aligned=True)
        slots = jnp.broadcast_to(jnp.arange(self.length), k_BTKD.shape[:2])
        if segment_ids_BT is None:
            segment_ids_BT = jnp.ones_like(slots)
        return KeyValues(k_BTKD, v_BTKW, TokenContext(slots, segment_ids_BT), aligned=False)

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
        """Writes [B, S, ...] to the slots of a cached array [B, T, ...]."""
        past = self.read_cache(name)
        if past is None:
            past = jnp.zeros((new.shape[0], self.length, *new.shape[2:]), new.dtype)
        # A scatter out of range is dropped, so padding is sent there.
        slots = jnp.where(context.segment_ids_BS > 0, context.positions_BS, self.length)
        rows = jnp.arange(new.shape[0])[:, None]
        updated: jax.Array = past.at[rows, slots].set(new.astype(past.dtype), mode="drop")
        self.write_cache(name, updated)
        return updated
