"""Consensus across hosts: any process may raise a flag, and all see it at the same step."""

from __future__ import annotations

from collections import deque
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec


class HostConsensus:
    """All-reduces a flag over all processes, once per step.

    The processes of a job must stop at the same step. One that stopped alone would leave the others
    blocked in their next collective. So every process calls `any_host` equally often, in the same
    order.
    """

    def __init__(self, mesh: Mesh, lag: int) -> None:
        """Reduces over a mesh; a result is read `lag` calls later, so dispatch is not blocked.

        A single process reads its own flag at once.
        """
        self._lag, self._pending = lag, deque[jax.Array]()
        self._sharded = NamedSharding(mesh, PartitionSpec(mesh.axis_names))
        replicated = NamedSharding(mesh, PartitionSpec())
        self._any: Any = jax.jit(jnp.any, out_shardings=replicated)
        self._shape = (mesh.size,)

    def any_host(self, flag: bool) -> bool:
        """Starts an all-reduce of the flag. Returns the result from `lag` calls ago, or False."""
        if jax.process_count() == 1:
            return flag
        flags = jax.make_array_from_callback(
            self._shape, self._sharded, lambda index: np.full(self._shape, flag)[index]
        )
        self._pending.append(self._any(flags))
        return len(self._pending) > self._lag and bool(self._pending.popleft())
