"""A vote: any process may ask for something, and all hear of it at the same step."""

from __future__ import annotations

from collections import deque
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec


class Vote:
    """Whether any process says yes, round after round.

    Processes that run one program together must also leave it together: one that stopped alone
    would let the others wait for ever at the next collective. All take part in every round, in the
    same order.
    """

    def __init__(self, mesh: Mesh, lag: int) -> None:
        """Rounds take part over the devices of a mesh; a result is waited for `lag` rounds later.

        So a loop that runs `lag` steps ahead of its devices is not held up. A process alone needs
        nobody's answer: it has its result at once.
        """
        self._lag, self._rounds = lag, deque[jax.Array]()
        self._together = NamedSharding(mesh, PartitionSpec(mesh.axis_names))
        everywhere = NamedSharding(mesh, PartitionSpec())
        self._any: Any = jax.jit(jnp.any, out_shardings=everywhere)
        self._shape = (mesh.size,)

    def cast(self, yes: bool) -> bool:
        """Takes part in a round. Returns the result of the one that is due; False before that."""
        if jax.process_count() == 1:
            return yes
        votes = jax.make_array_from_callback(
            self._shape, self._together, lambda index: np.full(self._shape, yes)[index]
        )
        self._rounds.append(self._any(votes))
        return len(self._rounds) > self._lag and bool(self._rounds.popleft())
