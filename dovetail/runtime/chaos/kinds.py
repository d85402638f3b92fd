"""The kinds of faults, where each strikes, and the schedules of trials."""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from dovetail.runtime.points import POINTS

STEPS = 12
SAVE_EVERY = 3

_LOCAL_SAVING = tuple(point for point in POINTS if point.startswith("local save"))
_ALL = tuple(point for point in POINTS if point != "run finished")
_SAVING = ("save begins", "save copied", "save written", "save agreed", "manifest written")
_TRAINING = ("first step", "step", "step compiled", "save written", "restore begins")


@dataclass(frozen=True)
class Kind:
    """A kind of fault.

    Attributes:
        action: what happens at a point (`runtime/points.py`).
        points: the points at which it may strike.
        damage: done to the newest checkpoint between two lives, instead of an action.
        local: whether the run has a local tier, to whose files the damage is done.
        says: what the run must say, if it cannot go on; it ends with code 2 then.
        restarts: whether the supervisor must restart the workers.
        signal_ends: whether the run ends with code 75, and the same command continues it.
    """

    action: str = "kill"
    points: tuple[str, ...] = _ALL
    damage: Callable[[Path, random.Random], None] | None = None
    restarts: bool = True
    signal_ends: bool = False
    local: bool = False
    says: str | None = None


def _files(checkpoint: Path) -> list[Path]:
    """Returns the files without which a checkpoint cannot be read, that with most data first."""
    data = [file for file in checkpoint.rglob("d/*") if file.is_file()]
    largest = sorted(data, key=lambda file: -file.stat().st_size)[:1]
    index = [checkpoint / "0" / name for name in ("manifest.ocdbt", "_METADATA")]
    return [*largest, *index, checkpoint / "manifest.json"]


def _flip(checkpoint: Path, choose: random.Random) -> None:
    _flip_in(_files(checkpoint)[0], choose)


def _flip_in(file: Path, choose: random.Random) -> None:
    content = bytearray(file.read_bytes())
    content[choose.randrange(len(content))] ^= 1 << choose.randrange(8)
    file.write_bytes(content)


def _truncate(checkpoint: Path, choose: random.Random) -> None:
    file = choose.choice(_files(checkpoint))
    file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])


def _zero(checkpoint: Path, choose: random.Random) -> None:
    file = choose.choice(_files(checkpoint))
    file.write_bytes(bytes(file.stat().st_size))


def _delete(checkpoint: Path, choose: random.Random) -> None:
    choose.choice(_files(checkpoint)).unlink()


def _truncate_of_one(checkpoint: Path, choose: random.Random) -> None:
    """Damages what only the last process reads."""
    data = [file for file in checkpoint.rglob("d/*") if "ocdbt.process_" in str(file)]
    last = max(file.parent.parent.name for file in data)
    own = [file for file in data if file.parent.parent.name == last]
    file = max(own, key=lambda file: file.stat().st_size)
    file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])


def _rename(checkpoint: Path, choose: random.Random) -> None:
    """The checkpoint pretends to be that of a later step."""
    checkpoint.rename(checkpoint.with_name(str(int(checkpoint.name) + choose.randrange(1, 3))))


def _lose_host(hosts: Path, choose: random.Random) -> None:
    """All that one host has on its own disk is gone."""
    shutil.rmtree(choose.choice(sorted(hosts.glob("host-*"))))


def _flip_local(hosts: Path, choose: random.Random) -> None:
    """Flips a bit in one copy of the newest shards of one process."""
    _flip_in(choose.choice(_newest_local(hosts)), choose)


def _flip_all_local(hosts: Path, choose: random.Random) -> None:
    """Flips a bit in every copy, so that an older checkpoint must do."""
    for file in _newest_local(hosts):
        _flip_in(file, choose)


def _newest_local(hosts: Path) -> list[Path]:
    files = list(hosts.glob("host-*/*/*/*.shards"))
    newest = max(int(file.parent.name.partition("-")[0]) for file in files)
    return sorted(file for file in files if file.parent.name.startswith(f"{newest}-"))


KINDS: dict[str, Kind] = {
    "kill": Kind(),
    "segfault": Kind("segfault", _TRAINING),
    "SIGSTOP": Kind("stop", _TRAINING),
    "held GIL": Kind("gil", _TRAINING),
    "slow process": Kind("sleep:2", _TRAINING, restarts=False),
    "slow disk": Kind("sleep:3", _SAVING, restarts=False),
    "full disk": Kind("full", _SAVING, restarts=False),
    "I/O error": Kind("error", _SAVING, restarts=False),
    "SIGTERM": Kind("SIGTERM", _TRAINING, restarts=False, signal_ends=True),
    "SIGUSR1": Kind("SIGUSR1", _TRAINING, restarts=False, signal_ends=True),
    "SIGHUP": Kind("SIGHUP", _TRAINING, restarts=False, signal_ends=True),
    "flipped bit": Kind(damage=_flip),
    "truncated file": Kind(damage=_truncate),
    "zeroed file": Kind(damage=_zero),
    "deleted file": Kind(damage=_delete),
    "file of one process truncated": Kind(damage=_truncate_of_one),
    "renamed checkpoint": Kind(damage=_rename),
    "full local disk": Kind("full", _LOCAL_SAVING, restarts=False, local=True),
    "lost host": Kind(damage=_lose_host, local=True),
    "flipped bit in a local copy": Kind(damage=_flip_local, local=True),
    "flipped bit in all local copies": Kind(damage=_flip_all_local, local=True),
    "clock moved": Kind("clock:-7200", _TRAINING, restarts=False),
    "run folder removed": Kind(
        "remove", ("step", "save written"), restarts=False, says="was removed or replaced"
    ),
}

CONTROLS: dict[str, tuple[str, int]] = {
    "no digest": ("flipped bit", 1),
    "no vote": ("file of one process truncated", 2),
    "no step in the manifest": ("renamed checkpoint", 1),
}
"""For each broken runtime the kind of fault that it must not survive, and how many processes."""


@dataclass(frozen=True)
class Trial:
    """One fault: what, where, and the seed that repeats it."""

    kind: str
    point: str
    number: int
    """Which time the point is reached."""
    processes: int
    seed: int

    @property
    def local(self) -> bool:
        """Whether the run has a local tier."""
        return KINDS[self.kind].local or self.point in _LOCAL_SAVING

    def __str__(self) -> str:
        """Returns the trial for people."""
        where = "between two lives" if KINDS[self.kind].damage else f"at {self.point!r}"
        return f"{self.kind} {where} ({self.number}), {self.processes} process(es)"


def trial(kind: str, seed: int, point: str | None = None, processes: int = 1) -> Trial:
    """Returns a trial; the seed chooses what is left open."""
    choose = random.Random(f"{kind} {seed}")
    if KINDS[kind].damage:
        # Killed after the second save or the third, so that there is an older checkpoint.
        point = "local save committed" if KINDS[kind].local else "save verified"
        return Trial(kind, point, choose.randrange(2, 4), processes, seed)
    point = point or choose.choice(KINDS[kind].points)
    return Trial(kind, point, _which_time(point, choose), processes, seed)


def _which_time(point: str, choose: random.Random) -> int:
    """Returns which time a point is reached, early enough that it is in any run."""
    if point == "step":
        return choose.randrange(2, STEPS - 2)
    if point.startswith(("save", "manifest", "local save")):
        return choose.randrange(1, STEPS // SAVE_EVERY)
    return 1


def short_trials(seed: int) -> list[Trial]:
    """Returns one trial of each kind, and the most delicate points; for CI."""
    kinds = [trial(kind, seed, processes=_processes(kind)) for kind in KINDS]
    points = ("save written", "manifest written", "manifest renamed", "restore read")
    return kinds + [trial("kill", seed, point) for point in points]


def _processes(kind: str) -> int:
    is_of_two = ("file of one process truncated", "lost host", "flipped bit in a local copy")
    return 2 if kind in is_of_two else 1


def long_trials(seed: int, count: int) -> list[Trial]:
    """Returns every point with every kind that strikes there, then random ones up to a number."""
    trials = [
        trial(kind, seed, point, _processes(kind))
        for kind, about in KINDS.items()
        for point in (about.points if about.damage is None else ("",))
    ]
    choose = random.Random(seed)
    while len(trials) < count:
        kind = choose.choice(list(KINDS))
        processes = max(choose.choice((1, 1, 2, 4)), _processes(kind))
        trials.append(trial(kind, choose.randrange(10**6), processes=processes))
    return trials[:count]
