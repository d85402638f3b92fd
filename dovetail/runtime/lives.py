"""Lives of a run: each start takes the next number, and only the newest life may commit (fencing).

A process that was stopped or cut off from the network may wake up after its successor has started.
The lock of the run folder does not help then: some file systems have no locks, and a host that is
cut off loses its lock. So each life takes a number in the run folder, and a commit by an older
life is refused.

`lives/000003.json` also records the steps that the life continued from, reached and saved, and how
it ended. A checkpoint is suspect if lives that start from it die: two within a few steps, or three
if some die while they read it. A run that has saved a step does not start from scratch because its
checkpoints are gone.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import re
import socket
import threading
import time
from collections import Counter
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from dovetail.config import RunError
from dovetail.runtime.points import reach
from dovetail.utils import atomic_write, flush, make_folder

_LOG = logging.getLogger("dovetail")

_FEW_STEPS = 5
_DEATHS_OF_A_SUSPECT = 2
_DEATHS_WITH_READING = 3
"""A life that dies while it reads a checkpoint may have another cause: reading takes a while."""
_ENDED_BY_A_STATE = ("NonFiniteError",)
"""Orderly ends that count as deaths: the state of the checkpoint may be the cause."""
_SECONDS_BETWEEN_RECORDS = 1.0


class FencedError(RunError):
    """A newer life of the run has started, so this one must not write.

    Attributes:
        restored: the step from which the newer life continued; None if unknown.
    """

    restored: int | None = None


@dataclass(frozen=True)
class LifeRecord:
    """The record of one life in the run folder."""

    number: int
    host: str
    pid: int
    started: float
    tried: int | None = None
    """The step whose checkpoint was read last; reading it may have ended the life."""
    restored: int | None = None
    reached: int | None = None
    saved: int | None = None
    """The newest verified step in the durable store; None if this life has not saved one."""
    ended: str | None = None


class Life:
    """One start of a run, of all its processes; process 0 keeps the record."""

    def __init__(self, folder: Path, record: LifeRecord) -> None:
        """Takes the record on disk."""
        self._folder, self.record = folder, record
        self._last_write = 0.0
        self._lock = threading.Lock()
        """Training and saves in the background both change the record."""
        self._disk = threading.Lock()
        self._writer: threading.Thread | None = None

    @property
    def number(self) -> int:
        """The number of this life, from 1; 0 if the folder could not be written."""
        return self.record.number

    def check(self) -> None:
        """Raises a FencedError if a newer life has started."""
        newest = max(_numbers(self._folder), default=0)
        if newest < self.number:
            raise FencedError(
                f"{self._folder.parent} was removed or replaced while life {self.number} trained "
                "there, so its state cannot be saved. Restore the folder from a copy and resume."
            )
        if newest > self.number:
            newer = _read(self._folder, newest)
            where = "" if newer is None else f" on {newer.host}, process id {newer.pid}"
            error = FencedError(
                f"Life {newest} of this run has started{where}, so life {self.number} writes no "
                "more checkpoints. This process was stopped or cut off for a while; end it."
            )
            error.restored = None if newer is None else newer.restored
            raise error

    def tries(self, step: int) -> None:
        """Records the step of a checkpoint that is about to be read."""
        self._record(tried=step)

    def resumed_from(self, step: int) -> None:
        """Records the step that was restored; 0 for a new run."""
        self._record(restored=step, reached=step)

    def reached(self, step: int) -> None:
        """Records progress; a thread writes it about once in a second, so no step waits for it."""
        with self._lock:
            self.record = replace(self.record, reached=step)
        is_writing = self._writer is not None and self._writer.is_alive()
        if not is_writing and time.monotonic() - self._last_write >= _SECONDS_BETWEEN_RECORDS:
            self._writer = threading.Thread(target=self._write, name="dovetail-life", daemon=True)
            self._writer.start()

    def saved(self, step: int) -> None:
        """Records the newest verified step in the durable store; 0 if none is left."""
        self._record(saved=step)

    def ended(self, how: str) -> None:
        """Records an orderly end; a life without one was killed."""
        self._record(ended=how)

    def before(self) -> LifeRecord | None:
        """Returns the record of the last life that trained before this one."""
        for number in sorted(_numbers(self._folder), reverse=True):
            record = _read(self._folder, number) if number < self.number else None
            if record is not None and record.restored is not None:
                return record
        return None

    def _record(self, **changes: Any) -> None:
        """Changes the record, and writes it."""
        with self._lock:
            self.record = replace(self.record, **changes)
        self._write()

    def _write(self) -> None:
        """Writes the record. A failure is ignored: it only helps to choose a checkpoint."""
        with self._disk:
            self._last_write = time.monotonic()
            with self._lock:
                text = json.dumps(asdict(self.record)) + "\n"
            with contextlib.suppress(OSError):
                atomic_write(_file(self._folder, self.number), text)


def take_life(folder: Path) -> Life:
    """Takes the next number of a run; `folder` contains its lives."""
    make_folder(folder)
    number = max(_numbers(folder), default=0)
    while True:
        number += 1
        record = LifeRecord(number, socket.gethostname(), os.getpid(), round(time.time(), 3))
        try:
            with _file(folder, number).open("x", encoding="utf-8") as file:
                file.write(json.dumps(asdict(record)) + "\n")
                file.flush()
                os.fsync(file.fileno())
            flush(folder)
        except FileExistsError:  # another process was faster
            continue
        reach("life taken")
        return Life(folder, record)


def check_nothing_lost(store: str, saved: int | None, reached: int | None) -> None:
    """Refuses to start a run from scratch whose checkpoints are gone.

    Args:
        store: where the checkpoints should be, for the message.
        saved: the step that an earlier life has saved, if any.
        reached: the step that it has reached; a warning says that this progress is lost.

    Raises:
        RunError: if an earlier life has saved a step.
    """
    if saved:
        raise RunError(
            f"{store} has no checkpoint, but an earlier life of this run has saved step {saved}. "
            "Restore the checkpoints from a copy, or set checkpointer.store to where they are. To "
            "start again at step 0, choose another run folder, or remove this one."
        )
    if reached:
        _LOG.warning(
            "An earlier life of this run has reached step %d, but no checkpoint is left. Training "
            "starts again at step 0.",
            reached,
        )


def suspects(folder: Path, before: int) -> set[int]:
    """Returns the steps of checkpoints with which the last lives died.

    Two died within a few steps, or three if those count that died while they read it. It stops at
    the newest life that got further, or that ended properly.

    Args:
        folder: the folder of the lives.
        before: the number of the life that asks.
    """
    deaths: Counter[int] = Counter()
    with_reading: Counter[int] = Counter()
    for number in sorted(_numbers(folder), reverse=True):
        if number >= before:
            continue
        life = _read(folder, number)
        if life is None or life.ended not in (None, *_ENDED_BY_A_STATE):
            break
        begin = life.tried if life.restored is None else life.restored
        if begin is None:  # it died before it read a checkpoint
            continue
        if not begin or (life.reached or 0) - begin > _FEW_STEPS:
            break
        deaths[begin] += life.restored is not None
        with_reading[begin] += 1
    return {
        step
        for step, count in with_reading.items()
        if deaths[step] >= _DEATHS_OF_A_SUSPECT or count >= _DEATHS_WITH_READING
    }


def _numbers(folder: Path) -> list[int]:
    try:
        names = [re.fullmatch(r"(\d{6,})\.json", file.name) for file in folder.iterdir()]
    except (FileNotFoundError, NotADirectoryError):  # other errors may pass
        return []
    return [int(name[1]) for name in names if name is not None]


def _read(folder: Path, number: int) -> LifeRecord | None:
    """Returns a record; None if it is damaged, which harms nothing."""
    with contextlib.suppress(OSError, ValueError, TypeError):
        return LifeRecord(**json.loads(_file(folder, number).read_text(encoding="utf-8")))
    return None


def _file(folder: Path, number: int) -> Path:
    return folder / f"{number:06d}.json"
