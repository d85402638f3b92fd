"""A save of shards: copied to the host, stored in the background, and committed by an agreement.

The training thread only copies shards to the host, in slices; a background thread does the rest. At
most `max_host_bytes` are on the host at a time: the training thread waits while there are more.

Before the commit, the sums of all stored slices must add up to the digests that the devices
computed. Otherwise replicas differ, or a copy was damaged on its way.
"""

from __future__ import annotations

import abc
import contextlib
import threading
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from dovetail.runtime.agreement import Agreement
from dovetail.runtime.checkpoints.manifest import Manifest, SavedArray
from dovetail.runtime.checkpoints.saving import SaveError, cause_of, checked_sums
from dovetail.runtime.checkpoints.shards.assignment import ShardSlice
from dovetail.runtime.checkpoints.shards.reading import ShardSource
from dovetail.runtime.checkpoints.shards.shard_file import ShardWriter
from dovetail.runtime.digest import add_sums, sums_of_part
from dovetail.runtime.lives import Life


@dataclass(frozen=True)
class ShardSaveSettings:
    """The settings that all saves of shards share."""

    agreement: Agreement
    life: Life | None
    life_number: int
    run: str
    max_host_bytes: int
    seconds: int


class ShardSave(abc.ABC):
    """A save in progress. `result` waits for its end."""

    def __init__(
        self,
        settings: ShardSaveSettings,
        step: int,
        leaves: Mapping[str, jax.Array],
        slices: Sequence[ShardSlice],
        digests: Mapping[str, jax.Array],
        topics: str,
        metric: float | None = None,
    ) -> None:
        """Copies this process's slices to the host; the arrays may be donated afterwards."""
        self._settings, self.step, self._topics = settings, step, topics
        self._digests, self._metric = digests, metric
        self._shapes = {path: (leaf.shape, str(leaf.dtype)) for path, leaf in leaves.items()}
        self._sums: dict[str, list[int]] = {}
        self._failure: Exception | None = None
        self._copies = _BoundedQueue(settings.max_host_bytes)
        self._thread = threading.Thread(target=self._run, name="dovetail-save-shards")
        self._thread.start()
        try:
            for each, data in _copies(leaves, slices):
                self._copies.put((each, leaves[each.path].shape, data), data.nbytes)
        except BaseException:
            self._copies.abandon()
            raise
        self._copies.close()

    def result(self) -> Exception | None:
        """Waits for the end; returns the cause of a failure, or None."""
        self._thread.join()
        return self._failure

    @property
    def name(self) -> str:
        """The name of the checkpoint: two lives never write the same files."""
        return f"{self.step}-{self._settings.life_number}"

    @abc.abstractmethod
    def _store(self) -> ShardSource:
        """Stores this process's slices with `_write_to`; returns a source to read them back."""

    @abc.abstractmethod
    def _commit(self, manifest: Manifest) -> None:
        """Commits the checkpoint, after all processes have stored their slices."""

    def _write_to(self, writer: ShardWriter) -> None:
        for each, shape, data in self._copies:
            writer.add(each.path, shape, each.start, data)

    def _read_back(self, stored: ShardSource) -> None:
        """Reads this process's slices back, and adds up their sums by array."""
        with contextlib.closing(stored):
            for shard in stored.index.shards:
                data = stored.read_shard(shard)
                added = sums_of_part(data, shard.start) if data.size else [0, 0]
                sums = self._sums.setdefault(shard.path, [0, 0])
                sums[:] = [(a + b) % 2**32 for a, b in zip(sums, added, strict=True)]

    def _about(self) -> dict[str, Any]:
        """Returns the facts that a file records about its save."""
        settings = self._settings
        return {
            "run": settings.run,
            "step": self.step,
            "life": settings.life_number,
            "process": settings.agreement.index,
            "processes": settings.agreement.count,
        }

    def _run(self) -> None:
        try:
            self._read_back(self._store())
            self._commit(self._agreed_manifest())
        except Exception as error:  # noqa: BLE001  # reported by the checkpointer
            self._failure = cause_of(error, self._settings.life, self._digests, self.step)
            self._settings.agreement.withdraw(self._topics, f"{type(error).__name__}: {error}")
        finally:
            self._copies.abandon()

    def _agreed_manifest(self) -> Manifest:
        """Returns the manifest, after all processes have stored slices and agree on the digests."""
        sums = checked_sums(self._digests, self.step)
        values = self._gather("all is written", sums)
        for index, other in enumerate(values):
            if other != values[0]:
                raise SaveError(f"process {index} has another state than process 0")
        self._check_sums(sums)
        if self._settings.life is not None:
            self._settings.life.check()
        self._gather("no newer life has started", None)
        arrays = {path: SavedArray(*self._shapes[path], sums[path]) for path in self._shapes}
        return Manifest(self.step, self._settings.life_number, arrays, self._metric)

    def _check_sums(self, digests: Mapping[str, str]) -> None:
        """Compares the sums of all stored slices with the digests of the devices."""
        stored = self._gather("sums", self._sums)
        wrong = sorted(
            path
            for path, digest in digests.items()
            if add_sums([sums[path] for sums in stored if path in sums]) != digest
        )
        if wrong:
            raise SaveError(
                f"{wrong[0]} is not stored as it is on the devices. Its copies on the devices "
                "differ, or the host or the storage damages data; the checkpoint is not committed"
            )

    def _gather(self, question: str, value: Any) -> list[Any]:
        settings = self._settings
        return settings.agreement.gather(f"{self._topics}{question}", value, settings.seconds)

    def _agree_on_success(self, question: str, problem: str | None) -> None:
        """Makes all processes report the same outcome, although only one may have failed."""
        for index, text in enumerate(self._gather(question, problem)):
            if text is not None:
                raise SaveError(f"process {index}: {text}")


def _copies(
    leaves: Mapping[str, jax.Array], slices: Sequence[ShardSlice]
) -> Iterator[tuple[ShardSlice, np.ndarray]]:
    """Yields the elements of each slice, and copies the next one meanwhile."""
    ahead = _start_copy(leaves, slices[0]) if slices else None
    for number, each in enumerate(slices):
        copy = ahead
        following = slices[number + 1 : number + 2]
        ahead = _start_copy(leaves, following[0]) if following else None
        # A copy, even where the array is in the host's memory: the step donates it.
        yield each, np.array(copy, copy=True)


def _start_copy(leaves: Mapping[str, jax.Array], each: ShardSlice) -> jax.Array:
    shards = leaves[each.path].addressable_shards
    data = next(shard.data for shard in shards if shard.device == each.device)
    if data.ndim and each.end - each.begin < data.shape[each.axis]:
        data = jax.lax.slice_in_dim(data, each.begin, each.end, axis=each.axis)
    data.copy_to_host_async()
    return data


class _BoundedQueue:
    """A queue between two threads; `put` waits while there are too many bytes."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes, self._bytes = max_bytes, 0
        self._items: deque[tuple[Any, int]] = deque()
        self._is_closed = self._is_abandoned = False
        self._changed = threading.Condition()

    def put(self, item: Any, size: int) -> None:
        """Adds an item; an item above the limit waits until the queue is empty."""
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
        """Marks the end of the items."""
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()

    def abandon(self) -> None:
        """Drops all items, now and later, because their consumer has failed."""
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
