"""The feed: each process makes the rows of its own devices, and they become one global batch."""

from __future__ import annotations

from typing import Any, Protocol

import jax


class BatchSource(Protocol):
    """Anything that gives the rows of a numbered batch."""

    def batch(self, step: int, rows: slice | None = None) -> Any:
        """Returns some rows of a batch."""
        ...


def device_batch(source: BatchSource, number: int, shardings: Any, spec: Any) -> Any:
    """Returns a batch on the devices, split as the shardings say."""
    rows = _local_rows(spec.tokens.shape, shardings.tokens)
    local = source.batch(number, rows)

    def place(values: Any, sharding: Any, leaf_spec: Any) -> jax.Array:
        def pick(index: tuple[slice, ...] | None) -> Any:
            assert index is not None  # only fully replicated scalars have none
            begin, end, _ = index[0].indices(leaf_spec.shape[0])
            return values[begin - rows.start : end - rows.start, *index[1:]]

        return jax.make_array_from_callback(leaf_spec.shape, sharding, pick)

    return jax.tree.map(place, local, shardings, spec)


def _local_rows(shape: tuple[int, ...], sharding: Any) -> slice:
    """Returns the smallest range of rows that covers what this process's devices hold."""
    indices = sharding.addressable_devices_indices_map(shape).values()
    ranges = [index[0].indices(shape[0])[:2] for index in indices]
    return slice(min(begin for begin, _ in ranges), max(end for _, end in ranges))
