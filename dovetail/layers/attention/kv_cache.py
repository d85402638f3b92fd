"""KV caches: the keys and values of earlier calls. Training uses `NoKVCache`.

W value head dim, beside the letters of all layers.
"""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol, runtime_checkable

import jax
import jax.numpy as jnp

from dovetail.config import REQUIRED, ConfigError
from dovetail.config import Config as AnyConfig
from dovetail.kernels.attention import Mask, attention
from dovetail.layers.checks import require_positive
from dovetail.layers.interfaces import TokenContext
from dovetail.module import Module


class KeyValues(NamedTuple):
    """The keys and values that queries attend to, with their positions and segment ids.

    `aligned` promises that query i and key i are the same token, so a kernel may skip blocks by
    index.
    """

    k_BTKD: jax.Array
    v_BTKW: jax.Array
    context_BT: TokenContext
    aligned: bool


class KVCache(Protocol):
    """Appends new keys and values, and returns all that the queries attend to."""

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
    if not kv.aligned and not mask.causal:
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


class NoKVCache(Module):
    """Stores nothing: queries attend to the keys and values of this call."""

    class Config(Module.Config["NoKVCache"]):
        def decoding_cache(self, length: int) -> AnyConfig[KVCache]:
            """Returns a contiguous KV cache."""
            return ContiguousKVCache.Config(length=length)

    def __call__(self, k_BSKD: jax.Array, v_BSKW: jax.Array, context: TokenContext) -> KeyValues:
        """Returns its input."""
        return KeyValues(k_BSKD, v_BSKW, context, aligned=True)


class ContiguousKVCache(Module):
    """A KV cache with one contiguous array per sequence; the token at position p is in slot p.

    Each row holds one sequence (one segment). Slots that are not written yet have positions after
    every query, so a causal mask hides them; other masks are refused. The caller keeps positions
    below the length: a token beyond it is dropped.
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
        past_key, past_value = self.read_cache("keys"), self.read_cache("values")
        is_first = past_key is None
        k_BTKD = self._write(past_key, k_BSKD, context)
        v_BTKW = self._write(past_value, v_BSKW, context)
        self.write_cache("keys", k_BTKD)
        self.write_cache("values", v_BTKW)
        if is_first:  # prefill: all keys are in this call, so the training kernels apply
            return KeyValues(k_BSKD, v_BSKW, context, aligned=True)
        slots = jnp.broadcast_to(jnp.arange(self.length), k_BTKD.shape[:2])
        return KeyValues(k_BTKD, v_BTKW, TokenContext(slots, jnp.ones_like(slots)), aligned=False)

    def _write(
        self, past: jax.Array | None, new_BSKD: jax.Array, context: TokenContext
    ) -> jax.Array:
        if past is None:
            batch, _, heads, width = new_BSKD.shape
            past = jnp.zeros((batch, self.length, heads, width), new_BSKD.dtype)
        # A scatter out of range is dropped, so padding is sent there.
        slots = jnp.where(context.segment_ids_BS > 0, context.positions_BS, self.length)
        rows = jnp.arange(new_BSKD.shape[0])[:, None]
        return past.at[rows, slots].set(new_BSKD.astype(past.dtype), mode="drop")
