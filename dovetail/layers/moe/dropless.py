"""Dropless dispatch: every token reaches every expert that it chose, however uneven that is.

Tokens are sorted by expert, and each matrix product is one grouped product over all experts. Over
several devices each sorts the tokens that it has; and where experts are split too, every device
sends its rows to the devices that have their experts, and gets them back.

B batch, S sequence, K choices, E width, X experts, N = B S K rows; P devices among which experts
are split, R rows that one takes from another.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec

from dovetail.config import ConfigError, Part
from dovetail.kernels.exchange import Runs, exchange, exchange_back
from dovetail.kernels.grouped_matmul import grouped_matmul
from dovetail.kernels.sharded import GatheredParts, context_mesh, indivisible, mesh_axes, parts
from dovetail.layers.moe.dispatch import Dispatched, mixed
from dovetail.layers.moe.router import Routing
from dovetail.module import grouped, shard_map
from dovetail.parallel import constrain, gather_again

TOKEN_AXES = ("batch", "sequence")


class Dropless(Part):
    """Every token reaches every expert that it chose.

    Where experts are split over devices, arrays have to have room for what may come. Nothing is
    ever lost where it is enough for the worst case, in which all tokens choose experts of one
    device; that is the default, and takes as much memory as there are devices to share the experts.
    """

    class Config(Part.Config["Dropless"]):
        """`room` for rows from another device, as a multiple of an even load; None means for all.

        What finds no room is dropped, and `dropped` says how much that is.
        """

        room: float | None = None

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self.room = config.room
        if self.room is not None and not self.room > 0:
            raise ConfigError(f"{config.locate('room')}: expected above 0, got {self.room}.")

    def __call__(self, expert: Any, x_BSE: jax.Array, routing: Routing) -> Dispatched:
        """Maps [B, S, E] to [B, S, E]."""
        experts = routing.counts_X.shape[0]
        run = self._on_devices(expert, experts) if _is_even(x_BSE, experts) else None
        if run is None:
            run = self._part(expert, experts, (), 1)
        mixed_BSE, kept = run(x_BSE, routing.experts_BSK, routing.weights_BSK)
        summaries = {} if self.room is None else {"dropped": 1 - kept}
        return Dispatched(mixed_BSE, summaries)

    def _on_devices(self, expert: Any, experts: int) -> Callable[..., Any] | None:
        """Returns what runs on each device's own tokens, with its own experts."""
        axes = mesh_axes(*TOKEN_AXES, "expert")
        mesh = context_mesh()
        if not axes or mesh is None:
            return None
        tokens = PartitionSpec(mesh_axes("batch") or None, mesh_axes("sequence") or None)
        part = self._part(expert, experts, mesh_axes("expert"), parts("expert"), axes)
        return shard_map(
            part,
            mesh=mesh,
            in_specs=(tokens, tokens, tokens),
            out_specs=(tokens, PartitionSpec()),
            axis_names=axes,
            layer=expert,
            parts=GatheredParts(axes, apart=mesh_axes("expert")),
            around=gather_again,
        )

    def _part(
        self,
        expert: Any,
        experts: int,
        expert_axes: tuple[str, ...],
        shards: int,
        axes: tuple[str, ...] = (),
    ) -> Callable[..., Any]:
        def part(x_BSE: jax.Array, experts_BSK: jax.Array, weights_BSK: jax.Array) -> Any:
            *lead, width = x_BSE.shape
            choices = experts_BSK.shape[-1]
            order_N = jnp.argsort(experts_BSK.reshape(-1), stable=True)
            x_NE = x_BSE.reshape(-1, width)[order_N // choices]
            counts_X = jnp.bincount(experts_BSK.reshape(-1), length=experts)
            if shards == 1:
                result_NE, kept = _run(expert, x_NE, counts_X, lead), jnp.ones(())
            else:
                room = self._room(x_NE.shape[0], shards)
                result_NE, kept = _elsewhere(expert, x_NE, counts_X, expert_axes, shards, room)
            back_N = jnp.argsort(order_N)
            result_BSKE = result_NE[back_N].reshape(*experts_BSK.shape, width)
            kept = jax.lax.pmean(kept, axes) if axes else kept
            return mixed(result_BSKE, weights_BSK).astype(x_BSE.dtype), kept

        return part

    def _room(self, rows: int, shards: int) -> int:
        """Returns how many rows one device takes from another."""
        return rows if self.room is None else min(rows, math.ceil(self.room * rows / shards))


def _is_even(x_BSE: jax.Array, experts: int) -> bool:
    """Says whether tokens and experts divide over the devices as they are to be split."""
    if x_BSE.ndim != 3:
        return False
    batch, length, _ = x_BSE.shape
    refusals = (
        indivisible("rows", batch, "batch"),
        indivisible("tokens", length, "sequence"),
        indivisible("experts", experts, "expert"),
    )
    return not any(refusals)


def _run(expert: Any, x_NE: jax.Array, sizes_X: jax.Array, lead: Sequence[int]) -> jax.Array:
    """Runs experts on rows that are sorted by expert, in the shape of tokens."""
    # As many rows as the batch has tokens, times the choices: so they split over devices as the
    # batch does, though which token stands where is another matter now.
    rows = x_NE.reshape(*lead[:-1], -1, x_NE.shape[-1])
    rows = constrain(rows, "batch", "sequence", "embed") if rows.ndim == 3 else rows
    result = grouped(expert, expert, rows, group_sizes=sizes_X, product=grouped_matmul)
    result_NE: jax.Array = result.reshape(x_NE.shape[0], -1)
    return result_NE


def _elsewhere(
    expert: Any,
    x_NE: jax.Array,
    counts_X: jax.Array,
    axes: tuple[str, ...],
    shards: int,
    room: int,
) -> tuple[jax.Array, jax.Array]:
    """Runs experts on the devices that have them; returns results and how much found room."""
    count, width = x_NE.shape
    wanted_P = counts_X.reshape(shards, -1).sum(axis=1)
    starts_P = jnp.cumsum(wanted_P) - wanted_P
    runs = Runs(starts_P, jnp.minimum(wanted_P, room))
    came_PRE = exchange(axes, room, x_NE, runs)
    local_PR, sizes_X = _experts_of(_counts_that_come(counts_X, axes, shards), room)
    order = jnp.argsort(local_PR.reshape(-1), stable=True)
    result = _run(expert, came_PRE.reshape(-1, width)[order], sizes_X, (1, 0))
    result_PRE = result[jnp.argsort(order)].reshape(shards, room, -1)
    kept = runs.sizes_P.sum() / count
    return exchange_back(axes, count, result_PRE, runs), kept


def _counts_that_come(counts_X: jax.Array, axes: tuple[str, ...], shards: int) -> jax.Array:
    """Returns how many rows each device has for each of this one's experts: [P, experts here]."""
    return jax.lax.all_to_all(counts_X.reshape(shards, -1), axes, 0, 0, tiled=True)


def _experts_of(counts_PX: jax.Array, room: int) -> tuple[jax.Array, jax.Array]:
    """Returns the expert of each row that came, one past the last for none; and rows an expert."""
    stops_PX = jnp.minimum(jnp.cumsum(counts_PX, axis=1), room)
    local_PR = (jnp.arange(room)[None, :, None] >= stops_PX[:, None, :]).sum(axis=2)
    starts_PX = jnp.pad(stops_PX, [(0, 0), (1, 0)])[:, :-1]
    return local_PR, (stops_PX - starts_PX).sum(axis=0)
