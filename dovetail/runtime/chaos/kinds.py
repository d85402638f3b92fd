"""The kinds of faults, and where each strikes."""

from __future__ import annotations

import random
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

from dovetail.runtime.chaos import damage
from dovetail.runtime.chaos.surroundings import ordinary, own_network, small_disk
from dovetail.runtime.points import POINTS

LOCAL_SAVING = tuple(point for point in POINTS if point.startswith("local save"))
_ALL = tuple(point for point in POINTS if point != "run finished")
_SAVING = ("save begins", "save copied", "save written", "save agreed", "manifest written")
_TRAINING = ("first step", "step", "step compiled", "save written", "restore begins")
_OBJECTS = (
    "checkpointer.store=ObjectStore",
    "checkpointer.store.url=file://{folder}/objects",
)
# Replicated parameters, so that copies of a flipped bit can be compared.
_REPLICATED = ("mesh.fsdp=1", "mesh.data=-1", "step_check.every=2")


@dataclass(frozen=True)
class Kind:
    """A kind of fault.

    Attributes:
        action: what happens at a point (`runtime/points.py`).
        points: the points at which it may strike.
        damage: done to the newest checkpoint between two lives, instead of an action.
        restarts: whether the supervisor must restart the workers.
        processes: the least number of processes of such a run.
        local: whether the run has a local tier, to whose files the damage is done.
        says: what the run must say, if it cannot go on; it ends with code 2 then.
        options: overrides of the run, and of the undisturbed one; {folder} is that of the trial.
        surroundings: what the run is started in.
        resizes: whether the next life has another number of processes. Its sums are in another
            order, so losses are close, not equal.
        loses_metrics: whether lines of metrics may be missing.
        overlaps: whether the next life starts while this one is stopped, and wakes up later.
        notice: what the run must say about the fault (a regular expression); one that nobody
            notices is not survived. Empty if the fault may do no harm.
    """

    action: str = "kill"
    points: tuple[str, ...] = _ALL
    damage: Callable[[Path, random.Random], None] | None = None
    restarts: bool = True
    processes: int = 1
    local: bool = False
    says: str | None = None
    options: tuple[str, ...] = ()
    surroundings: Callable[[Path], AbstractContextManager[list[str]]] = ordinary
    resizes: bool = False
    loses_metrics: bool = False
    overlaps: bool = False
    notice: str = ""

    @property
    def is_between_lives(self) -> bool:
        """Whether the run is killed first, and the fault is in what the next life finds."""
        return self.damage is not None or self.resizes


_UNUSABLE = r"cannot be used|has no complete checkpoint"
_NOT_SAVED = r"Saving step \d+ failed"

KINDS: dict[str, Kind] = {
    "kill": Kind(notice="crash by SIGKILL"),
    "segfault": Kind("segfault", _TRAINING, notice="crash by SIGSEGV"),
    "SIGSTOP": Kind("stop", _TRAINING, notice="sent nothing|made no progress"),
    "held GIL": Kind("gil", _TRAINING, notice="sent nothing|made no progress"),
    "slow process": Kind("sleep:2", _TRAINING, restarts=False),
    "slow disk": Kind("sleep:3", _SAVING, restarts=False),
    "full disk": Kind("full", _SAVING, restarts=False, notice=_NOT_SAVED),
    "I/O error": Kind("error", _SAVING, restarts=False, notice=_NOT_SAVED),
    "full tmpfs": Kind(
        "fill:3", (*_SAVING, "step"), restarts=False, surroundings=small_disk, loses_metrics=True
    ),
    "SIGTERM": Kind("SIGTERM", _TRAINING, restarts=False, notice="stopped by SIGTERM"),
    "SIGUSR1": Kind("SIGUSR1", _TRAINING, restarts=False, notice="stopped by SIGUSR1"),
    "SIGHUP": Kind("SIGHUP", _TRAINING, restarts=False, notice="stopped by SIGHUP"),
    "flipped bit": Kind(damage=damage.flip, notice=_UNUSABLE),
    "truncated file": Kind(damage=damage.truncate, notice=_UNUSABLE),
    "zeroed file": Kind(damage=damage.zero, notice=_UNUSABLE),
    "deleted file": Kind(damage=damage.delete, notice=_UNUSABLE),
    "file of one process truncated": Kind(
        damage=damage.truncate_of_one, processes=2, notice=_UNUSABLE
    ),
    "renamed checkpoint": Kind(damage=damage.rename, notice=_UNUSABLE),
    "full local disk": Kind("full", LOCAL_SAVING, restarts=False, local=True, notice=_NOT_SAVED),
    "lost host": Kind(damage=damage.lose_host, local=True, processes=2),
    "flipped bit in a local copy": Kind(damage=damage.flip_local, local=True, processes=2),
    "flipped bit in all local copies": Kind(
        damage=damage.flip_all_local, local=True, notice=_UNUSABLE
    ),
    "truncated local copy": Kind(damage=damage.truncate_local, local=True, processes=2),
    "deleted local copy": Kind(damage=damage.delete_local, local=True, processes=2),
    "kill, with an object store": Kind(
        points=("save written", "save agreed", "manifest written", "checkpoint removed"),
        options=_OBJECTS,
        notice="crash by SIGKILL",
    ),
    "flipped bit in an object": Kind(damage=damage.flip_object, options=_OBJECTS, notice=_UNUSABLE),
    "flipped bit on a device": Kind(
        "flip", ("state",), processes=2, options=_REPLICATED, notice="differ"
    ),
    "flipped exponent": Kind("flip:30", ("state",), notice="is not finite"),
    "NaN batch": Kind("nan", ("batch",), notice="is not finite"),
    "network cut": Kind(
        "cut:4", ("step", "save written"), restarts=False, processes=2, surroundings=own_network
    ),
    "network cut for long": Kind(
        "cut:20", ("step", "save written"), processes=2, surroundings=own_network
    ),
    "other number of processes": Kind(resizes=True),
    "two lives at once": Kind(
        "stop", ("step", "save written", "save agreed", "manifest written"), overlaps=True
    ),
    "clock moved": Kind("clock:-7200", _TRAINING, restarts=False),
    "run folder removed": Kind(
        "remove", ("step", "save written"), restarts=False, says="was removed or replaced"
    ),
}

CONTROLS: dict[str, str] = {
    "no digest": "flipped bit",
    "no vote": "file of one process truncated",
    "no step in the manifest": "renamed checkpoint",
    "no fencing": "two lives at once",
}
"""For each broken runtime (`broken.py`), the kind of fault that it must not survive."""
