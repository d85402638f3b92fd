"""A save of shards: copied to the host, stored in the background, agreed on, and committed.

The training thread only copies shards to the host; a background thread does the rest. At most
`max_host_bytes` wait to be stored: the training thread waits while there are more.
"""

from __future__ import annotations

import abc
import threading
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from dovetail.runtime.agreement import Agreement
from dovetail.runtime.checkpoints.manifest import Manifest, SavedArray
from dovetail.runtime.checkpoints.saving import SaveError, checked_sums
from dovetail.runtime.checkpoints.shards.shard_file import ShardWriter
from dovetail.runtime.checkpoints.shards.shares import Part
from dovetail.runtime.lives import Life


@dataclass(frozen=True)
class ShardSaveSettings:
    """What all saves of shards of a run share."""

    agreement: Agreement
    life: Life | None
    life_number: int
    run: str
    max_host_bytes: int
    seconds: int


class ShardSave(abc.ABC):
    """A save that has begun. `result` waits for its end."""

    def __init__(
        self,
        settings: ShardSaveSettings,
        step: int,
        leaves: Mapping[str, jax.Array],
        parts: Sequence[Part],
        digests: Mapping[str, jax.Array],
        topics: str,
        metric: float | None = None,
    ) -> None:
        """Copies this process's parts to the host; the arrays may be donated afterwards."""
        self._settings, self.step, self._topics = settings, step, topics
        self._digests, self._metric = digests, metric
        self._shapes = {path: (leaf.shape, str(leaf.dtype)) for path, leaf in leaves.items()}
        self._failure: Exception | None = None
        self._copies = _BoundedQueue(settings.max_host_bytes)
        self._thread = threading.Thread(target=self._run, name="dovetail-save-shards")
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
    def name(self) -> str:
        """The name of the checkpoint: two lives never write the same files."""
        return f"{self.step}-{self._settings.life_number}"

    @abc.abstractmethod
    def _store(self) -> None:
        """Stores this process's shards, which `_write_to` writes."""

    @abc.abstractmethod
    def _commit(self, manifest: Manifest) -> None:
        """Makes the checkpoint visible, once all processes have stored theirs."""

    def _write_to(self, writer: ShardWriter) -> None:
        for part, shape, data in self._copies:
            writer.add(part.path, shape, part.start, data)

    def _about(self) -> dict[str, Any]:
        """Returns what a file says about itself."""
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
            self._store()
            self._commit(self._agreed_manifest())
        except Exception as error:  # noqa: BLE001  # reported by the checkpointer
            self._failure = error
            self._settings.agreement.withdraw(self._topics, f"{type(error).__name__}: {error}")
        finally:
            self._copies.abandon()

    def _agreed_manifest(self) -> Manifest:
        """Returns the manifest, once all processes have stored what they agree on."""
        sums = checked_sums(self._digests, self.step)
        values = self._gather("all is written", sums)
        for index, other in enumerate(values):
            if other != values[0]:
                raise SaveError(f"process {index} has a state that differs from that of process 0")
        if self._settings.life is not None:
            self._settings.life.check()
        self._gather("this life goes on", None)
        arrays = {path: SavedArray(*self._shapes[path], sums[path]) for path in self._shapes}
        return Manifest(self.step, self._settings.life_number, arrays, self._metric)

    def _gather(self, question: str, value: Any) -> list[Any]:
        settings = self._settings
        return settings.agreement.gather(f"{self._topics}{question}", value, settings.seconds)

    def _agree_on_success(self, question: str, problem: str | None) -> None:
        """Makes all processes report the same: one that could not do it, and those that could."""
        for index, text in enumerate(self._gather(question, problem)):
            if text is not None:
                raise SaveError(f"process {index}: {text}")


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
