"""Dropless dispatch: every token reaches all its experts, however uneven the load.

Tokens are sorted by expert, and each matmul is one grouped matmul over all experts. On several
devices, each sorts its own tokens. With expert parallelism, an all-to-all sends rows to the devices
of their experts, and another one back.

N = B S K rows; P expert-parallel shards, L experts of a shard, R capacity: rows that one shard
receives from another; beside the letters of this folder.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec

from dovetail.config import Component, ConfigError
from dovetail.kernels.all_to_all import SendRanges, all_to_all, inverse_all_to_all
from dovetail.kernels.grouped_matmul import grouped_matmul
from dovetail.kernels.sharded import (
    GatheredShards,
    context_mesh,
    indivisible,
    mesh_axes,
    num_shards,
)
from dovetail.layers.moe.dispatch import DispatchOutput, combine
from dovetail.layers.moe.router import Routing
from dovetail.module import ragged_vmap, shard_map
from dovetail.parallel import constrain, remat_all_gathers

TOKEN_AXES = ("batch", "sequence")


class Dropless(Component):
    """Dispatch without dropped tokens (MegaBlocks, https://arxiv.org/abs/2211.15841).

    With expert parallelism the all-to-all needs buffers of fixed capacity. By default they fit the
    worst case, all tokens at the experts of one shard, so no token is dropped. Their memory then
    grows with the number of shards.
    """

    class Config(Component.Config["Dropless"]):
        """The capacity for rows of another shard, as a multiple of an even load; None fits all.

        Rows beyond the capacity are dropped; the metric `dropped` is their fraction.
        """

        capacity_factor: float | None = None

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        factor = self.capacity_factor = config.capacity_factor
        if factor is not None and not factor > 0:
            raise ConfigError(
                f"{config.locate('capacity_factor')}: expected above 0, got {factor}."
            )

    def __call__(self, expert: Any, x_BSE: jax.Array, routing: Routing) -> DispatchOutput:
        """Maps [B, S, E] to [B, S, E]."""
        experts = routing.counts_X.shape[0]
        run = self._sharded(expert, experts) if _is_divisible(x_BSE, experts) else None
        if run is None:
            run = self._per_shard(expert, experts, (), 1)
        output_BSE, kept = run(x_BSE, routing.experts_BSK, routing.weights_BSK)
        summaries = {} if self.capacity_factor is None else {"dropped": 1 - kept}
        return DispatchOutput(output_BSE, summaries)

    def _sharded(self, expert: Any, experts: int) -> Callable[..., Any] | None:
        """Returns the shard_map over tokens and experts; None without a mesh."""
        axes = mesh_axes(*TOKEN_AXES, "expert")
        mesh = context_mesh()
        if not axes or mesh is None:
            return None
        tokens = PartitionSpec(mesh_axes("batch") or None, mesh_axes("sequence") or None)
        per_shard = self._per_shard(
            expert, experts, mesh_axes("expert"), num_shards("expert"), axes
        )
        return shard_map(
            per_shard,
            mesh=mesh,
            in_specs=(tokens, tokens, tokens),
            out_specs=(tokens, PartitionSpec()),
            axis_names=axes,
            layer=expert,
            state_sharding=GatheredShards(axes, keep_sharded=mesh_axes("expert")),
            around=remat_all_gathers,
        )

    def _per_shard(
        self,
        expert: Any,
        experts: int,
        expert_axes: tuple[str, ...],
        shards: int,
        axes: tuple[str, ...] = (),
    ) -> Callable[..., Any]:
        def per_shard(x_BSE: jax.Array, experts_BSK: jax.Array, weights_BSK: jax.Array) -> Any:
            *lead, width = x_BSE.shape
            choices = experts_BSK.shape[-1]
            order_N = jnp.argsort(experts_BSK.reshape(-1), stable=True)
            x_NE = x_BSE.reshape(-1, width)[order_N // choices]
            counts_X = jnp.bincount(experts_BSK.reshape(-1), length=experts)
            if shards == 1:
                result_NE, kept = _run(expert, x_NE, counts_X, lead), jnp.ones(())
            else:
                capacity = self._capacity(x_NE.shape[0], shards)
                result_NE, kept = _run_expert_parallel(
                    expert, x_NE, counts_X, expert_axes, shards, capacity
                )
            back_N = jnp.argsort(order_N)
            result_BSKE = result_NE[back_N].reshape(*experts_BSK.shape, width)
            kept = jax.lax.pmean(kept, axes) if axes else kept
            return combine(result_BSKE, weights_BSK).astype(x_BSE.dtype), kept

        return per_shard

    def _capacity(self, rows: int, shards: int) -> int:
        """Returns how many rows one shard receives from another, at most."""
        factor = self.capacity_factor
        return rows if factor is None else min(rows, math.ceil(factor * rows / shards))


def _is_divisible(x_BSE: jax.Array, experts: int) -> bool:
    """Returns whether tokens and experts divide over their mesh axes."""
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
    """Runs experts on rows sorted by expert, reshaped to [B, rows, E] for sharding."""
    # The number of rows is a multiple of the batch size, so they shard as the batch does, though
    # sorting has moved them across it.
    rows = x_NE.reshape(*lead[:-1], -1, x_NE.shape[-1])
    rows = constrain(rows, "batch", "sequence", "embed") if rows.ndim == 3 else rows
    result = ragged_vmap(expert, expert, rows, group_sizes=sizes_X, matmul=grouped_matmul)
    result_NE: jax.Array = result.reshape(x_NE.shape[0], -1)
    return result_NE


def _run_expert_parallel(
    expert: Any,
    x_NE: jax.Array,
    counts_X: jax.Array,
    axes: tuple[str, ...],
    shards: int,
    capacity: int,
) -> tuple[jax.Array, jax.Array]:
    """Runs experts on their shards; returns the results, and the fraction of rows not dropped."""
    count, width = x_NE.shape
    wanted_P = counts_X.reshape(shards, -1).sum(axis=1)
    starts_P = jnp.cumsum(wanted_P) - wanted_P
    ranges = SendRanges(starts_P, jnp.minimum(wanted_P, capacity))
    received_PRE = all_to_all(axes, capacity, x_NE, ranges)
    local_PR, sizes_L = _received_experts(_received_counts(counts_X, axes, shards), capacity)
    order = jnp.argsort(local_PR.reshape(-1), stable=True)
    result = _run(expert, received_PRE.reshape(-1, width)[order], sizes_L, (1, 0))
    result_PRE = result[jnp.argsort(order)].reshape(shards, capacity, -1)
    kept = ranges.sizes_P.sum() / count
    return inverse_all_to_all(axes, count, result_PRE, ranges), kept


def _received_counts(counts_X: jax.Array, axes: tuple[str, ...], shards: int) -> jax.Array:
    """Returns how many rows each shard sends to each local expert: [P, L]."""
    return jax.lax.all_to_all(counts_X.reshape(shards, -1), axes, 0, 0, tiled=True)


def _received_experts(counts_PL: jax.Array, capacity: int) -> tuple[jax.Array, jax.Array]:
    """Returns the local expert of each received row (past the last: none), and rows per expert."""
    stops_PL = jnp.minimum(jnp.cumsum(counts_PL, axis=1), capacity)
    local_PR = (jnp.arange(capacity)[None, :, None] >= stops_PL[:, None, :]).sum(axis=2)
    starts_PL = jnp.pad(stops_PL, [(0, 0), (1, 0)])[:, :-1]
    return local_PR, (stops_PL - starts_PL).sum(axis=0)
