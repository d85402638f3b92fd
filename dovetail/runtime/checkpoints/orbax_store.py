"""The arrays of checkpoints in files, written and read with Orbax, group by group.

A checkpoint is a folder with one folder per group (`layout.py`). Orbax copies a group to the host,
then writes it in the background; the next group waits for that. So at most one group of a save is
in the host's memory, and a state of one group costs training no more than that copy.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import sys
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from absl import logging as absl_logging
from etils import epath

from dovetail.runtime.agreement import Agreement
from dovetail.runtime.checkpoints.layout import Piece, cut, host_bytes
from dovetail.runtime.checkpoints.manifest import DamagedCheckpointError, Manifest, SavedArray
from dovetail.runtime.checkpoints.resharding import read_sharding
from dovetail.runtime.digest import sums_of_part
from dovetail.utils import make_folder

# TensorStore compresses and reads chunk by chunk. An array in one chunk takes several copies.
_CHUNK_BYTES = 32 * 2**20


class GroupWriter:
    """Writes the groups of one checkpoint, in the background.

    It uses Orbax's handler, not its `AsyncCheckpointer`. The latter starts with a collective on the
    training thread, which waits forever for a process whose save has failed. Its temporary folders
    and renames are not needed, because our manifest is the commit.
    """

    def __init__(self, agreement: Agreement, topics: str, seconds: int) -> None:
        """Takes the prefix of this save's topics, and the deadline of each of its steps."""
        self._agreement, self._topics, self._seconds = agreement, topics, seconds
        self._handler, self._group, self._futures = _handler(), Path(), list[Any]()
        absl_logging.get_absl_logger().addFilter(_is_not_reported_here)
        _ignore_late_callbacks()

    def write(self, folder: Path, leaves: Mapping[str, jax.Array], pieces: Sequence[Piece]) -> None:
        """Copies the groups to the host one after the other; returns while the last is written."""
        for group in range(pieces[-1].group + 1):
            self.finish()
            self._group = folder.absolute() / str(group)
            # Process 0 makes this folder inside Orbax, and the others would wait for it.
            make_folder(self._group / "array_metadatas")
            self._begin({p.name: cut(leaves[p.path], p) for p in pieces if p.group == group})

    def _begin(self, arrays: Mapping[str, jax.Array]) -> None:
        """Copies a group to the host. Nothing here holds its slices while the next are cut."""
        import orbax.checkpoint as ocp

        chunked = {name: ocp.SaveArgs(chunk_byte_size=_CHUNK_BYTES) for name in arrays}
        arguments = ocp.args.PyTreeSave(dict(arrays), save_args=chunked)
        saving = self._handler.async_save(epath.Path(self._group), args=arguments)
        self._futures = _run(saving) or []

    def finish(self) -> None:
        """Waits until this group is written by all processes; process 0 merges their indices."""
        if not self._futures:
            return
        futures, self._futures = self._futures, []
        for future in futures:
            future.result(timeout=self._seconds)
        self._agreement.gather(f"{self._topics}{self._group.name} is written", None, self._seconds)
        if self._agreement.index == 0:
            self._handler.finalize(epath.Path(self._group))

    def close(self) -> None:
        """Releases the threads; errors have been reported."""
        with contextlib.suppress(Exception):
            self._handler.close()


def _run(coroutine: Coroutine[Any, Any, Any]) -> Any:
    """Runs a coroutine in a thread, because a notebook already runs an event loop."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(asyncio.run, coroutine).result()


def _is_not_reported_here(record: logging.LogRecord) -> bool:
    """Drops the traceback of a failed write, because `finish` raises the same error."""
    return not (record.exc_info and "orbax" in record.pathname)


def saved_arrays(
    leaves: Mapping[str, jax.ShapeDtypeStruct],
    pieces: Iterable[Piece],
    digests: Mapping[str, str],
) -> dict[str, SavedArray]:
    """Returns the entries of a manifest."""
    found: dict[str, list[Piece]] = {}
    for piece in pieces:
        found.setdefault(piece.path, []).append(piece)

    def saved(path: str, leaf: jax.ShapeDtypeStruct) -> SavedArray:
        first = found[path][0]
        slices = () if first.is_whole else tuple((p.group, p.begin, p.end) for p in found[path])
        return SavedArray(
            tuple(leaf.shape), str(leaf.dtype), digests[path], first.axis, slices, first.group
        )

    return {path: saved(path, leaf) for path, leaf in leaves.items()}


def read_arrays(
    folder: Path, manifest: Manifest, like: Mapping[str, jax.ShapeDtypeStruct]
) -> dict[str, jax.Array]:
    """Reads arrays onto the devices, with the file's dtypes and the shardings for reading."""

    def as_read(struct: jax.ShapeDtypeStruct, saved: SavedArray) -> jax.ShapeDtypeStruct:
        sharding = read_sharding(struct, saved.axis if saved.slices else None)
        return jax.ShapeDtypeStruct(struct.shape, jnp.dtype(saved.dtype), sharding=sharding)

    structs = {path: as_read(struct, manifest.arrays[path]) for path, struct in like.items()}
    result: dict[str, jax.Array] = {}
    for group, pieces in _by_group(manifest, structs).items():
        for piece, array in _read_pieces(folder / str(group), pieces, structs):
            if piece.is_whole:
                result[piece.path] = array
            else:
                whole = result.get(piece.path)
                if whole is None:
                    whole = zeros(structs[piece.path])
                result[piece.path] = _insert(whole, array, piece.begin, piece.axis)
    return result


def sums_on_disk(
    folder: Path, manifest: Manifest, paths: Sequence[str], max_bytes: int
) -> dict[str, list[int]]:
    """Reads arrays back to the host, piece by piece, and returns the sums of their digests."""
    structs = {
        path: jax.ShapeDtypeStruct(manifest.arrays[path].shape, manifest.arrays[path].dtype)
        for path in paths
    }
    sums: dict[str, list[int]] = {path: [0, 0] for path in paths}
    for group, pieces in _by_group(manifest, structs).items():
        for batch in _batches(pieces, structs, max_bytes):
            for path, added in _sums_of_batch(folder / str(group), batch):
                sums[path] = [a + b for a, b in zip(sums[path], added, strict=True)]
    return sums


def _sums_of_batch(folder: Path, batch: Sequence[Piece]) -> list[tuple[str, list[int]]]:
    """Returns the sums of some pieces. Their arrays are freed before the next batch is read."""
    found = []
    for piece, array in _read_pieces(folder, batch, None):
        start = [0] * array.ndim
        if not piece.is_whole:
            start[piece.axis] = piece.begin
        found.append((piece.path, sums_of_part(array, start) if array.size else [0, 0]))
    return found


def _batches(
    pieces: Sequence[Piece], structs: Mapping[str, Any], max_bytes: int
) -> Iterable[list[Piece]]:
    """Divides the pieces of a group so that a process can hold each batch."""
    batch: list[Piece] = []
    used = 0
    for piece in pieces:
        struct = structs[piece.path]
        size = host_bytes(struct)
        if not piece.is_whole:
            size = size * (piece.end - piece.begin) // struct.shape[piece.axis]
        if batch and used + size > max_bytes:
            yield batch
            batch, used = [], 0
        batch.append(piece)
        used += size
    if batch:
        yield batch


def _by_group(manifest: Manifest, paths: Iterable[str]) -> dict[int, list[Piece]]:
    """Returns the pieces of some arrays by group."""
    groups: dict[int, list[Piece]] = {}
    for path in paths:
        array = manifest.arrays[path]
        end = array.shape[0] if array.shape else 0
        for group, begin, stop in array.slices or ((array.group, 0, end),):
            piece = Piece(path, group, array.axis, begin, stop, is_whole=not array.slices)
            groups.setdefault(group, []).append(piece)
    return dict(sorted(groups.items()))


def _read_pieces(
    folder: Path, pieces: Sequence[Piece], structs: Mapping[str, Any] | None
) -> Iterable[tuple[Piece, Any]]:
    """Reads pieces of one group: to the devices of `structs`, or else to the host."""
    import orbax.checkpoint as ocp

    def arguments(piece: Piece) -> Any:
        if structs is None:
            return ocp.RestoreArgs(restore_type=np.ndarray)
        struct = structs[piece.path]
        shape = list(struct.shape)
        if not piece.is_whole:
            shape[piece.axis] = piece.end - piece.begin
        return ocp.ArrayRestoreArgs(
            sharding=struct.sharding, global_shape=tuple(shape), dtype=struct.dtype, strict=True
        )

    _ignore_late_callbacks()
    restore = {piece.name: arguments(piece) for piece in pieces}
    item = dict.fromkeys(restore, 0)
    # The handler, not a Checkpointer: that one waits for all processes, and each reads alone here.
    read = _handler().restore(
        folder.absolute(),
        args=ocp.args.PyTreeRestore(item=item, restore_args=restore, partial_restore=True),
    )
    return [(piece, _checked(piece, read.get(piece.name))) for piece in pieces]


@functools.cache
def _ignore_late_callbacks() -> None:
    """Keeps Python from printing the tracebacks of transfers that fail after another one has.

    After one read or write has failed, Orbax closes its event loop. The errors of the others are
    then lost or ignored. They add nothing to the error of the first.
    """
    before = sys.unraisablehook

    def hook(unraisable: Any) -> None:
        error, code = unraisable.exc_value, getattr(unraisable.object, "cr_code", None)
        is_closed = isinstance(error, RuntimeError) and str(error) == "Event loop is closed"
        if not is_closed and "orbax" not in getattr(code, "co_filename", ""):
            before(unraisable)

    sys.unraisablehook = hook
    logging.getLogger("asyncio").addFilter(
        lambda record: "exception was never retrieved" not in record.getMessage()
    )


def _checked(piece: Piece, array: Any) -> Any:
    """Refuses a value that is no array: with damaged metadata, Orbax returns the placeholder."""
    if not isinstance(array, jax.Array | np.ndarray):
        raise DamagedCheckpointError(f"{piece.name} is missing in its files")
    return array


def _handler() -> Any:
    import orbax.checkpoint as ocp

    return ocp.PyTreeCheckpointHandler()


def zeros(struct: jax.ShapeDtypeStruct) -> jax.Array:
    """Returns an array of zeros with the sharding of a struct."""
    make: Callable[[], jax.Array] = jax.jit(
        lambda: jnp.zeros(struct.shape, struct.dtype), out_shardings=struct.sharding
    )
    return make()


@jax.jit(static_argnums=3, donate_argnums=0)
def _insert(whole: jax.Array, piece: jax.Array, begin: Any, axis: int) -> jax.Array:
    return jax.lax.dynamic_update_slice_in_dim(whole, piece, begin, axis)
