"""Embedding lookup in a table that is sharded over devices.

Left to itself, XLA all-reduces the gradient of the whole table and slices it then, or it gathers
the tokens of all devices. Here each device looks up its own tokens, and the gradient is
reduce-scattered to the devices that hold its shards. Only such shards cross slices.

B batch, S sequence, V vocabulary, E embed.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp

from dovetail.kernels.sharded import indivisible, logical_shard_map, mesh_axes
from dovetail.parallel import constrain, record_activation


def embedding_lookup(table_VE: jax.Array, tokens_BS: jax.Array) -> jax.Array:
    """Maps tokens [B, S] to [B, S, E]. A token beyond the vocabulary gives NaN."""
    if not _divides(table_VE, tokens_BS):
        # Each device looks up full vectors for its own rows. Otherwise the partitioner would look
        # up slices of vectors for all rows, and then replicate everything.
        return jnp.take(constrain(table_VE, "vocab", None), tokens_BS, axis=0, mode="fill")
    vocab_axes, embed_axes = mesh_axes("vocab"), mesh_axes("embed")
    vocabulary = table_VE.shape[0]

    def shard(table_VE: jax.Array, tokens_BS: jax.Array) -> jax.Array:
        # The gradient of this all-gather is a reduce-scatter.
        if embed_axes:
            table_VE = jax.lax.all_gather(table_VE, embed_axes, axis=1, tiled=True)
        return _lookup_in_shard(table_VE, tokens_BS, vocab_axes, vocabulary)

    record_activation(table_VE, "vocab", None)  # gathered, it takes as much memory as one
    tokens = ("batch", "sequence")
    run = logical_shard_map(shard, (("vocab", "embed"), tokens), (*tokens, None))
    x_BSE: jax.Array = run(table_VE, tokens_BS)
    return x_BSE


def _lookup_in_shard(
    table_VE: jax.Array, tokens_BS: jax.Array, axes: tuple[str, ...], vocabulary: int
) -> jax.Array:
    """Looks up in a vocabulary that is sharded over axes: one device has each token, then psum."""
    if not axes:
        return jnp.take(table_VE, tokens_BS, axis=0, mode="fill")
    local_BS = tokens_BS - jax.lax.axis_index(axes) * table_VE.shape[0]
    is_local_BS = (local_BS >= 0) & (local_BS < table_VE.shape[0])
    x_BSE = jnp.take(table_VE, jnp.where(is_local_BS, local_BS, 0), axis=0)
    x_BSE = jax.lax.psum(jnp.where(is_local_BS[..., None], x_BSE, 0), axes)
    is_known_BS = (tokens_BS >= 0) & (tokens_BS < vocabulary)
    return jnp.where(is_known_BS[..., None], x_BSE, jnp.nan)


def _divides(table_VE: jax.Array, tokens_BS: jax.Array) -> bool:
    """Returns whether tokens and table divide over the devices."""
    if tokens_BS.ndim != 2 or set(mesh_axes("vocab")) & set(mesh_axes("embed")):
        return False
    refusals = (
        indivisible("rows", tokens_BS.shape[0], "batch"),
        indivisible("tokens", tokens_BS.shape[1], "sequence"),
        indivisible("tokens of the vocabulary", table_VE.shape[0], "vocab"),
        indivisible("columns", table_VE.shape[1], "embed"),
    )
    return not any(refusals)
