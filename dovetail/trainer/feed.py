"""Feeding data: the global batch is sharded over hosts; each loads the rows of its devices."""

from __future__ import annotations

from typing import Any, Protocol

import jax
import numpy as np

from dovetail.config import ConfigError


class BatchSource(Protocol):
    """Loads rows of a batch by its number."""

    def batch(self, step: int, rows: slice | None = None) -> Any:
        """Returns some rows of a batch."""
        ...


def device_batch(source: BatchSource, number: int, shardings: Any, spec: Any) -> Any:
    """Returns a global batch on the devices with these shardings."""
    rows = _local_rows(jax.tree.leaves(spec), jax.tree.leaves(shardings))
    local = source.batch(number, rows)
    _check_batch(type(source).__name__, local, spec, rows)

    def place(values: Any, sharding: Any, leaf_spec: Any) -> jax.Array:
        def pick(index: tuple[slice, ...] | None) -> Any:
            assert index is not None  # None only for replicated scalars
            begin, end, _ = index[0].indices(leaf_spec.shape[0])
            return values[begin - rows.start : end - rows.start, *index[1:]]

        return jax.make_array_from_callback(leaf_spec.shape, sharding, pick)

    return jax.tree.map(place, local, shardings, spec)


def _check_batch(source: str, batch: Any, spec: Any, rows: slice) -> None:
    """Raises a ConfigError if a batch is not what the spec of its input says."""
    structures: list[Any] = [jax.tree.structure(tree) for tree in (batch, spec)]
    if structures[0] != structures[1]:
        raise ConfigError(
            f"{source}.batch: expected a {type(spec).__name__} with the same fields as "
            f"{source}.spec() returns, got {type(batch).__name__}"
            + (". Does it end with `return`?" if batch is None else ".")
        )
    paths, _ = jax.tree_util.tree_flatten_with_path(spec)
    for (path, leaf), values in zip(paths, jax.tree.leaves(batch), strict=True):
        expected = (rows.stop - rows.start, *leaf.shape[1:])
        if np.shape(values) != expected:
            raise ConfigError(
                f"{source}.batch: {jax.tree_util.keystr(path)} has the shape {np.shape(values)}, "
                f"expected {expected}: rows {rows.start} to {rows.stop} of the shape {leaf.shape} "
                f"that {source}.spec() says."
            )
        dtype = values.dtype if hasattr(values, "dtype") else np.result_type(values)
        dtype, wanted = map(jax.dtypes.canonicalize_dtype, (dtype, leaf.dtype))
        if dtype != wanted:
            raise ConfigError(
                f"{source}.batch: {jax.tree_util.keystr(path)} has the dtype {dtype}, expected "
                f"{wanted} as {source}.spec() says."
            )


def _local_rows(specs: list[Any], shardings: list[Any]) -> slice:
    """Returns the smallest range of rows that covers the shards of this process's devices."""
    ranges = [
        index[0].indices(spec.shape[0])[:2]
        for spec, sharding in zip(specs, shardings, strict=True)
        for index in sharding.addressable_devices_indices_map(spec.shape).values()
    ]
    return slice(min(begin for begin, _ in ranges), max(end for _, end in ranges))
