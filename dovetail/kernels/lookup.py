"""Looking vectors up in a table that is split over devices.

Left to itself, XLA adds up the gradient of the whole table over all devices, and cuts it then; or
it gathers the tokens of all devices for that. Here each device looks its own tokens up, and the
gradient goes straight to those that hold a part of it. What crosses slices is such a part.

B batch, S sequence, V vocabulary, E embed.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp

from dovetail.kernels.sharded import indivisible, mesh_axes, on_each_device
from dovetail.parallel import constrain, note_activation


def lookup(table_VE: jax.Array, tokens_BS: jax.Array) -> jax.Array:
    """Looks tokens up: [B, S] to [B, S, E]. One beyond the vocabulary gives NaN."""
    if not _divides(table_VE, tokens_BS):
        # Each device looks up whole vectors for its own rows. Otherwise the partitioner would look
        # up slices of vectors for all rows, and then copy everything everywhere.
        return jnp.take(constrain(table_VE, "vocab", None), tokens_BS, axis=0, mode="fill")
    rows, columns = mesh_axes("vocab"), mesh_axes("embed")
    count = table_VE.shape[0]

    def part(table_VE: jax.Array, tokens_BS: jax.Array) -> jax.Array:
        # The gradient of gathering is adding up and scattering.
        if columns:
            table_VE = jax.lax.all_gather(table_VE, columns, axis=1, tiled=True)
        return _in_rows(table_VE, tokens_BS, rows, count)

    note_activation(table_VE, "vocab", None)  # gathered, it takes as much memory as one
    tokens = ("batch", "sequence")
    run = on_each_device(part, (("vocab", "embed"), tokens), (*tokens, None))
    x_BSE: jax.Array = run(table_VE, tokens_BS)
    return x_BSE


def _in_rows(
    table_VE: jax.Array, tokens_BS: jax.Array, axes: tuple[str, ...], count: int
) -> jax.Array:
    """Looks up where devices along some axes have different rows: one has each, and all add up."""
    if not axes:
        return jnp.take(table_VE, tokens_BS, axis=0, mode="fill")
    here = tokens_BS - jax.lax.axis_index(axes) * table_VE.shape[0]
    is_here = (here >= 0) & (here < table_VE.shape[0])
    x_BSE = jnp.take(table_VE, jnp.where(is_here, here, 0), axis=0)
    x_BSE = jax.lax.psum(jnp.where(is_here[..., None], x_BSE, 0), axes)
    is_known = (tokens_BS >= 0) & (tokens_BS < count)
    return jnp.where(is_known[..., None], x_BSE, jnp.nan)


def _divides(table_VE: jax.Array, tokens_BS: jax.Array) -> bool:
    """Says whether tokens and table divide over the devices as they are to be split."""
    if tokens_BS.ndim != 2 or set(mesh_axes("vocab")) & set(mesh_axes("embed")):
        return False
    refusals = (
        indivisible("rows", tokens_BS.shape[0], "batch"),
        indivisible("tokens", tokens_BS.shape[1], "sequence"),
        indivisible("tokens of the vocabulary", table_VE.shape[0], "vocab"),
        indivisible("columns", table_VE.shape[1], "embed"),
    )
    return not any(refusals)
