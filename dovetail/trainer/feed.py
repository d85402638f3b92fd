"""Feeding data: the global batch is sharded over hosts; each loads the rows of its devices."""

from __future__ import annotations

from typing import Any, Protocol

import jax

from dovetail.data import TRAIN, PreparedData

# A language model gains little from a fifth epoch; fifty are surely a mistake.
_MANY_EPOCHS = 50


class BatchSource(Protocol):
    """Loads rows of a batch by its number."""

    def batch(self, step: int, rows: slice | None = None) -> Any:
        """Returns some rows of a batch."""
        ...


def device_batch(source: BatchSource, number: int, shardings: Any, spec: Any) -> Any:
    """Returns a global batch on the devices with these shardings."""
    rows = _local_rows(spec.tokens.shape, shardings.tokens)
    local = source.batch(number, rows)

    def place(values: Any, sharding: Any, leaf_spec: Any) -> jax.Array:
        def pick(index: tuple[slice, ...] | None) -> Any:
            assert index is not None  # None only for replicated scalars
            begin, end, _ = index[0].indices(leaf_spec.shape[0])
            return values[begin - rows.start : end - rows.start, *index[1:]]

        return jax.make_array_from_callback(leaf_spec.shape, sharding, pick)

    return jax.tree.map(place, local, shardings, spec)


def _local_rows(shape: tuple[int, ...], sharding: Any) -> slice:
    """Returns the smallest range of rows that covers the shards of this process's devices."""
    indices = sharding.addressable_devices_indices_map(shape).values()
    ranges = [index[0].indices(shape[0])[:2] for index in indices]
    return slice(min(begin for begin, _ in ranges), max(end for _, end in ranges))


def epochs_warning(prepared: PreparedData, tokens_per_step: int, steps: int) -> str | None:
    """Returns a warning if a run repeats its data far too often, else None."""
    split = prepared.splits.get(TRAIN)
    if split is None or not split.tokens:
        return None
    epochs = steps * tokens_per_step / split.tokens
    if split.tokens >= tokens_per_step and epochs <= _MANY_EPOCHS:
        return None
    return (
        f"warning: the data has {split.tokens:,} training tokens and a step takes "
        f"{tokens_per_step:,}, so {steps:,} steps are {epochs:,.0f} epochs; the model will "
        "memorize the data. Add text, or use fewer steps or smaller batches."
    )
