"""Memory spaces for training state: keep it on the device, or offload it to the host.

The host of an accelerator has many times its memory, at a fraction of its bandwidth. State that a
step reads once, such as the optimizer state, can be offloaded and fetched for the update.
"""

from __future__ import annotations

from typing import Any, Protocol

import jax

from dovetail.config import Component


class MemorySpace(Protocol):
    """A memory that a device can read."""

    kind: str | None
    """JAX's memory kind; None is the device's default."""

    def fetch(self, tree: Any, after: jax.Array) -> Any:
        """Returns the arrays in device memory, copied once `after` is computed."""
        ...


class DeviceMemory(Component):
    """Device memory (HBM)."""

    kind: str | None = None

    def fetch(self, tree: Any, after: jax.Array) -> Any:
        """Returns the arrays unchanged."""
        return tree


class HostMemory(Component):
    """Pinned host memory. Copies overlap with computation."""

    kind: str | None = "pinned_host"

    def fetch(self, tree: Any, after: jax.Array) -> Any:
        """Copies the arrays to the device. The barrier keeps XLA from copying too early."""
        tree, _ = jax.lax.optimization_barrier((tree, after))
        return jax.device_put(tree, jax.memory.Space.Device)
