"""Memories: where a part of the state lies between steps.

The host of an accelerator has many times its memory, at a fraction of its speed. What a step
needs only once, such as the optimizer's state, may lie there and be fetched for the update.
"""

from __future__ import annotations

from typing import Any, Protocol

import jax

from dovetail.config import Part


class Memory(Protocol):
    """A memory that a device can reach."""

    kind: str | None
    """What JAX calls it; None is the device's own."""

    def fetch(self, tree: Any, after: jax.Array) -> Any:
        """Returns arrays that lie here in the device's own memory, once `after` is computed."""
        ...


class DeviceMemory(Part):
    """The device's own memory."""

    kind: str | None = None

    def fetch(self, tree: Any, after: jax.Array) -> Any:
        """Returns the arrays: they are there."""
        return tree


class HostMemory(Part):
    """The memory of the device's host, from which arrays can be copied while it computes."""

    kind: str | None = "pinned_host"

    def fetch(self, tree: Any, after: jax.Array) -> Any:
        """Copies the arrays over. Without `after` the compiler might do so when the step begins."""
        tree, _ = jax.lax.optimization_barrier((tree, after))
        return jax.device_put(tree, jax.memory.Space.Device)
