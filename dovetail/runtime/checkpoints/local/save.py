"""One save to the local tier: copied, written, sent to a peer, agreed on, and committed.

The training thread only copies shards to the host; a background thread does the rest. At most
`max_host_bytes` wait to be written: the training thread waits while there are more.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import numpy as np

from dovetail.runtime.agreement import Agreement
from dovetail.runtime.checkpoints.local.shard_file import ShardFileWriter
from dovetail.runtime.checkpoints.local.shares import Part
from dovetail.runtime.checkpoints.local.transfer import Peer
from dovetail.runtime.checkpoints.manifest import NAME, Manifest, SavedArray
from dovetail.runtime.checkpoints.saving import SaveError, checked_sums
from dovetail.runtime.lives import Life
from dovetail.runtime.points import reach
from dovetail.utils import atomic_write, make_folder


@dataclass(frozen=True)
class LocalSaveSettings:
    """What all saves of a run to the local tier share."""

    folder: Path
    agreement: Agreement
    life: Life | None
    life_number: int
    run: str
    peer: Peer | None
    max_host_bytes: int
    seconds: int


class LocalSave:
    """A save that has begun. `result` waits for its end."""

    def __init__(
        self,
        settings: LocalSaveSettings,
        step: int,
        leaves: Mapping[str, jax.Array],
        parts: Sequence[Part],
        digests: Mapping[str, jax.Array],
        topics: str,
    ) -> None:
        """Copies this process's parts to the host; the arrays may be donated afterwards."""
        self._settings, self.step, self._topics = settings, step, topics
        self._digests = digests
        self._shapes = {path: (leaf.shape, str(leaf.dtype)) for path, leaf in leaves.items()}
        self._failure: Exception | None = None
        self._copies = _BoundedQueue(settings.max_host_bytes)
        self._thread = threading.Thread(target=self._run, name="dovetail-local-save")
        self._thread.start()
        try:
            for part, data in _copies(leaves, parts):
                self._copies.put((part, leaves[part.path].shape, data), data.nbytes)
        except BaseException:
            self._copies.abandon()
            raise
        self._copies.close()

    def result(self) -> Exception | None:
        """Waits for the end, and returns why the save failed, or None."""
        self._thread.join()
        return self._failure

    @property
    def _name(self) -> str:
        return f"{self.step}-{self._settings.life_number}"

    def _run(self) -> None:
        try:
            self._write()
            self._commit()
        except Exception as error:  # noqa: BLE001  # reported by the checkpointer
            self._failure = error
            self._settings.agreement.withdraw(self._topics, f"{type(error).__name__}: {error}")
        finally:
            self._copies.abandon()

    def _write(self) -> None:
        """Writes this process's file, and sends a copy to its peer."""
        settings = self._settings
        folder, index = settings.folder / self._name, settings.agreement.index
        make_folder(folder)
        file = folder / f"{index}.shards"
        with ShardFileWriter(file, self._about(index)) as writer:
            for part, shape, data in self._copies:
                writer.add(part.path, shape, part.start, data)
            writer.commit()
        reach("local save written")
        if settings.peer is not None:
            settings.peer.put(file, f"{self._name}/{file.name}")
        reach("local save copied to a peer")

    def _about(self, index: int) -> dict[str, Any]:
        settings = self._settings
        return {
            "run": settings.run,
            "step": self.step,
            "life": settings.life_number,
            "process": index,
            "processes": settings.agreement.count,
        }

    def _commit(self) -> None:
        """Writes the manifest, once all processes have written what they agree on.

        Any manifest is a commit: all files were complete before the first one was written.
        """
        settings = self._settings
        sums = checked_sums(self._digests, self.step)
        values = settings.agreement.gather(f"{self._topics}all is written", sums, settings.seconds)
        for index, other in enumerate(values):
            if other != values[0]:
                raise SaveError(f"process {index} has a state that differs from that of process 0")
        if settings.life is not None:
            settings.life.check()
        settings.agreement.gather(f"{self._topics}this life goes on", None, settings.seconds)
        arrays = {path: SavedArray(*self._shapes[path], sums[path]) for path in self._shapes}
        manifest = Manifest(self.step, settings.life_number, arrays)
        problem = None
        try:
            atomic_write(settings.folder / self._name / NAME, manifest.text())
        except OSError as error:
            problem = str(error)
        reach("local save committed")
        # All report the same: a process that could not write it, and those that could.
        problems = settings.agreement.gather(
            f"{self._topics}it is committed", problem, settings.seconds
        )
        for index, text in enumerate(problems):
            if text is not None:
                raise SaveError(f"process {index} has no manifest: {text}")


def _copies(
    leaves: Mapping[str, jax.Array], parts: Sequence[Part]
) -> Iterator[tuple[Part, np.ndarray]]:
    """Yields the elements of each part; starts the copy of the next one meanwhile."""
    shards = [_shard(leaves[part.path], part) for part in parts]
    for number, (part, shard) in enumerate(zip(parts, shards, strict=True)):
        if number + 1 < len(shards):
            shards[number + 1].copy_to_host_async()
        # A copy, even where the array is in the host's memory: the step donates it.
        yield part, np.array(shard, copy=True)


def _shard(leaf: jax.Array, part: Part) -> jax.Array:
    return next(shard.data for shard in leaf.addressable_shards if shard.device == part.device)


class _BoundedQueue:
    """Items from one thread to another; `put` waits while there are too many bytes."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes, self._bytes = max_bytes, 0
        self._items: deque[tuple[Any, int]] = deque()
        self._is_closed = self._is_abandoned = False
        self._changed = threading.Condition()

    def put(self, item: Any, size: int) -> None:
        """Adds an item; one that alone is too large only waits until the queue is empty."""
        with self._changed:
            self._changed.wait_for(
                lambda: (
                    self._is_abandoned or not self._bytes or self._bytes + size <= self._max_bytes
                )
            )
            if not self._is_abandoned:
                self._items.append((item, size))
                self._bytes += size
                self._changed.notify_all()

    def close(self) -> None:
        """Says that no more items come."""
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()

    def abandon(self) -> None:
        """Drops all items, now and later: nobody takes them any more."""
        with self._changed:
            self._is_abandoned = True
            self._items.clear()
            self._changed.notify_all()

    def __iter__(self) -> Iterator[Any]:
        """Yields the items; an item counts until the next one is asked for."""
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._items or self._is_closed or self._is_abandoned)
                if self._is_abandoned:
                    raise SaveError("not everything was copied to the host")
                if not self._items:
                    return
                item, size = self._items.popleft()
            yield item
            del item
            with self._changed:
                self._bytes -= size
                self._changed.notify_all()
