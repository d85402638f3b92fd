"""Sequence memories: what attention keeps of earlier calls. Training keeps nothing."""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol, runtime_checkable

import jax
import jax.numpy as jnp

from dovetail.config import REQUIRED, ConfigError
from dovetail.config import Config as AnyConfig
from dovetail.kernels.attention import Mask, attention
from dovetail.layers.checks import require_positive
from dovetail.layers.interfaces import Places
from dovetail.module import Module


class Remembered(NamedTuple):
    """The keys and values that queries may see.

    `aligned` promises that query i and key i are the same token, so that a kernel may skip by
    index.
    """

    key_BTKD: jax.Array
    value_BTKD: jax.Array
    places_BT: Places
    aligned: bool


class KeyValueMemory(Protocol):
    """Takes in new keys and values, and returns all that can be seen."""

    def __call__(self, key_BSKD: jax.Array, value_BSKD: jax.Array, places: Places, /) -> Remembered:
        """Returns the remembered keys and values, the new ones among them."""
        ...


@runtime_checkable
class ScaleOfWidth(Protocol):
    """Says what scores are multiplied with, given the width of a head."""

    def __call__(self, head_width: int, /) -> float:
        """Returns the factor."""
        ...


def attend(
    query_BSHD: jax.Array,
    seen: Remembered,
    places: Places,
    mask: Mask,
    where: str,
    scale: float | ScaleOfWidth | None = None,
    **options: Any,
) -> jax.Array:
    """Lets queries look at what is remembered.

    Args:
        query_BSHD: the queries.
        seen: the keys and values.
        places: where the queries stand.
        mask: which keys a query may see; a memory does not hold what comes later.
        where: the name of the mask's field, for the error.
        scale: what scores are multiplied with; None is the usual.
        options: more arguments of `attention`.
    """
    if not seen.aligned and not mask.causal:
        raise ConfigError(
            f"{where}: {mask} lets tokens see later ones, which a memory does not hold yet. Decode "
            "with a causal mask, or without a memory, all at once."
        )
    return attention(
        query_BSHD,
        seen.key_BTKD,
        seen.value_BTKD,
        mask=mask,
        query_positions_BS=places.positions_BS,
        key_positions_BT=seen.places_BT.positions_BS,
        query_segments_BS=places.segments_BS,
        key_segments_BT=seen.places_BT.segments_BS,
        aligned=seen.aligned,
        scale=scale(query_BSHD.shape[-1]) if callable(scale) else scale,
        **options,
    )


class NoMemory(Module):
    """Keeps nothing: all that can be seen is in this call."""

    class Config(Module.Config["NoMemory"]):
        """Nothing to set."""

        def remembering(self, length: int) -> AnyConfig[KeyValueMemory]:
            """Returns the memory that decodes."""
            return ContiguousMemory.Config(length=length)

    def __call__(self, key_BSKD: jax.Array, value_BSKD: jax.Array, places: Places) -> Remembered:
        """Returns what came in."""
        return Remembered(key_BSKD, value_BSKD, places, aligned=True)


class ContiguousMemory(Module):
    """Keeps one array of slots a sequence; the token at position p lives in slot p.

    Each row holds one sequence (one segment). Slots that were never written lie at positions that
    no query has reached, so a causal mask hides them: memory works with causal masks only. Whoever
    decodes sees to it that positions stay below the length; a token beyond it would be forgotten.
    """

    class Config(Module.Config["ContiguousMemory"]):
        """How many tokens fit."""

        length: int = REQUIRED

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        require_positive(config, "length")
        self.length = config.length

    def __call__(self, key_BSKD: jax.Array, value_BSKD: jax.Array, places: Places) -> Remembered:
        """Writes the new tokens into their slots; padding (segment 0) is not written."""
        past_key, past_value = self.read_cache("keys"), self.read_cache("values")
        is_first = past_key is None
        key_BTKD = self._write(past_key, key_BSKD, places)
        value_BTKD = self._write(past_value, value_BSKD, places)
        self.write_cache("keys", key_BTKD)
        self.write_cache("values", value_BTKD)
        if is_first:  # nothing to see but this call: the fast kernels apply, as in training
            return Remembered(key_BSKD, value_BSKD, places, aligned=True)
        slots = jnp.broadcast_to(jnp.arange(self.length), key_BTKD.shape[:2])
        return Remembered(key_BTKD, value_BTKD, Places(slots, jnp.ones_like(slots)), aligned=False)

    def _write(self, past: jax.Array | None, new_BSKD: jax.Array, places: Places) -> jax.Array:
        if past is None:
            batch, _, heads, width = new_BSKD.shape
            past = jnp.zeros((batch, self.length, heads, width), new_BSKD.dtype)
        # Out of range means dropped, so padding is sent there.
        slots = jnp.where(places.segments_BS > 0, places.positions_BS, self.length)
        rows = jnp.arange(new_BSKD.shape[0])[:, None]
        return past.at[rows, slots].set(new_BSKD.astype(past.dtype), mode="drop")
