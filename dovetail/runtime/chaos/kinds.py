"""The kinds of faults, and where each strikes."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dovetail.runtime.chaos import damage
from dovetail.runtime.chaos.surroundings import (
    ordinary,
    own_cache,
    own_network,
    small_disk,
    traced_disk,
)
from dovetail.runtime.points import POINTS

LOCAL_SAVING = tuple(point for point in POINTS if point.startswith("local save"))
_ALL = tuple(point for point in POINTS if point != "run finished")
_SAVING = ("save begins", "save copied", "save written", "save agreed", "manifest written")
_COMMITTING = ("save synced", "manifest renamed", "save verified", "checkpoint removed")
_TRAINING = ("first step", "step", "step compiled", "save written", "restore begins")
_STARTING = ("compile begins", *_TRAINING)
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
        damage: applied to the saved files after a first life was killed, instead of an action.
        processes: the least number of processes of such a run.
        local: whether the run has a local tier, to whose files the damage is done.
        says: the message of a run that cannot continue; it ends with code 2 then.
        options: overrides of the run and of the undisturbed one; {folder} is the trial's folder.
        surroundings: the environment in which the run is started.
        resizes: whether the next life has another number of processes.
        devices: the number of devices of each life of one process; all but the last are killed.
        loses_no_step: whether the next life must continue from the newest step that was saved.
        loses_metrics: whether lines of metrics may be missing.
        overlaps: whether the next life starts while this one is stopped, and wakes up later.
        notice: a regular expression for the run's message about the fault. A silent fault counts
            as not survived. Empty if the fault may be harmless.
    """

    action: str = "kill"
    points: tuple[str, ...] = _ALL
    damage: damage.Damage | None = None
    processes: int = 1
    local: bool = False
    says: str | None = None
    options: tuple[str, ...] = ()
    surroundings: Callable[[Path], AbstractContextManager[list[str]]] = ordinary
    resizes: bool = False
    devices: tuple[int, ...] = ()
    loses_no_step: bool = False
    loses_metrics: bool = False
    overlaps: bool = False
    notice: str = ""

    @property
    def is_between_lives(self) -> bool:
        """Whether the run is killed first, and the fault damages the files for the next life."""
        return self.damage is not None or self.changes_mesh

    @property
    def changes_mesh(self) -> bool:
        """Whether another life sums in another order, so that losses are only close."""
        return self.resizes or bool(self.devices)


_UNUSABLE = r"cannot be used|has no complete checkpoint"
_NOT_SAVED = r"Saving step \d+ failed"


def _damaged(by: damage.Damage, **about: Any) -> Kind:
    """Returns a kind whose first life is killed after a save; then its saved files are damaged."""
    where = "local save committed" if about.get("local") else "save verified"
    return Kind(damage=by, **{"points": (where,), "notice": _UNUSABLE, **about})


KINDS: dict[str, Kind] = {
    "kill": Kind(notice="crash by SIGKILL"),
    "kill in data preparation": Kind(
        "later:0.5", ("data begins",), surroundings=own_cache, notice="crash by SIGKILL"
    ),
    "segfault": Kind("segfault", _TRAINING, notice="crash by SIGSEGV"),
    "SIGSTOP": Kind("stop", _TRAINING, notice="sent nothing|made no progress"),
    "held GIL": Kind("gil", _TRAINING, notice="sent nothing|made no progress"),
    "slow process": Kind("sleep:2", _TRAINING),
    "slow disk": Kind("sleep:3", _SAVING),
    "full disk": Kind("full", _SAVING, notice=_NOT_SAVED),
    "I/O error": Kind("error", _SAVING, notice=_NOT_SAVED),
    "full tmpfs": Kind("fill:3", (*_SAVING, "step"), surroundings=small_disk, loses_metrics=True),
    "SIGTERM": Kind("SIGTERM", _STARTING, notice="stopped by SIGTERM"),
    "SIGUSR1": Kind("SIGUSR1", _STARTING, notice="stopped by SIGUSR1"),
    "SIGHUP": Kind("SIGHUP", _STARTING, notice="stopped by SIGHUP"),
    "flipped bit": _damaged(damage.flip),
    "truncated file": _damaged(damage.truncate),
    "zeroed file": _damaged(damage.zero),
    "deleted file": _damaged(damage.delete),
    "file of one process truncated": _damaged(damage.truncate_of_one, processes=2),
    "renamed checkpoint": _damaged(damage.rename),
    "power cut": _damaged(
        damage.cut_power,
        points=(*_SAVING, *_COMMITTING),
        surroundings=traced_disk,
        loses_no_step=True,
        loses_metrics=True,
        notice="",
    ),
    "full local disk": Kind("full", LOCAL_SAVING, local=True, notice=_NOT_SAVED),
    "lost host": _damaged(damage.lose_host, local=True, processes=2, notice="is not on this host"),
    "flipped bit in a local copy": _damaged(damage.flip_local, local=True, processes=2, notice=""),
    "flipped bit in all local copies": _damaged(damage.flip_all_local, local=True),
    "truncated local copy": _damaged(damage.truncate_local, local=True, processes=2, notice=""),
    "deleted local copy": _damaged(damage.delete_local, local=True, processes=2, notice=""),
    "kill, with an object store": Kind(
        points=("save written", "save agreed", "manifest written", "checkpoint removed"),
        options=_OBJECTS,
        notice="crash by SIGKILL",
    ),
    "flipped bit in an object": _damaged(damage.flip_object, options=_OBJECTS),
    "flipped bit on a device": Kind(
        "flip", ("state",), processes=2, options=_REPLICATED, notice="differ"
    ),
    "flipped exponent": Kind("flip:30", ("state",), notice="is not finite"),
    "NaN batch": Kind("nan", ("batch",), notice="is not finite"),
    "network cut": Kind("cut:4", ("step", "save written"), processes=2, surroundings=own_network),
    "network cut for long": Kind(
        "cut:20", ("step", "save written"), processes=2, surroundings=own_network
    ),
    "other number of processes": Kind(points=("save verified",), resizes=True),
    "other number of devices": Kind(points=("save verified",), devices=(8, 4, 8)),
    "two lives at once": Kind(
        "stop", ("step", "save written", "save agreed", "manifest written"), overlaps=True
    ),
    "clock moved": Kind("clock:-7200", _TRAINING),
    "run folder removed": Kind("remove", ("step", "save written"), says="was removed or replaced"),
}

CONTROLS: dict[str, str] = {
    "no digest": "flipped bit",
    "no vote": "file of one process truncated",
    "no step in the manifest": "renamed checkpoint",
    "no fencing": "two lives at once",
    "no fsync": "power cut",
}
"""For each broken runtime (`broken.py`), the kind of fault that it must not survive."""
