"""Trials: which fault strikes where, in the short form, the long form, or by itself."""

from __future__ import annotations

import random
from dataclasses import dataclass

from dovetail.runtime.chaos.kinds import KINDS, LOCAL_SAVING

STEPS = 12
SAVE_EVERY = 3

_PROCESSES_AFTER = {1: 2, 2: 1, 4: 2}

_OF_PROCESS_0 = (
    *("life taken", "save synced", "manifest written", "manifest renamed", "checkpoint removed"),
)
"""The points that no other process reaches."""

_OF_FOUR = ("step", "step compiled", "save written", "restore read")

_SHORT = (
    ("kill", "save written"),
    ("kill", "manifest renamed"),
    ("kill", "restore read"),
    ("segfault", "step"),
    ("slow disk", "save written"),
    ("full disk", "save written"),
    ("I/O error", "save begins"),
    ("full tmpfs", "step"),
    ("SIGTERM", "step compiled"),
    ("SIGUSR1", "step"),
    ("flipped bit", None),
    ("truncated file", None),
    ("deleted file", None),
    ("renamed checkpoint", None),
    ("flipped bit in all local copies", None),
    ("flipped exponent", None),
    ("NaN batch", None),
    ("two lives at once", "save agreed"),
    ("two lives at once", "manifest written"),
    ("clock moved", "step"),
    ("run folder removed", "step"),
)


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
        return KINDS[self.kind].local or self.point in LOCAL_SAVING

    @property
    def process(self) -> int:
        """The process that is struck."""
        return 0 if self.point in _OF_PROCESS_0 else self.seed % self.processes

    @property
    def processes_after(self) -> int:
        """The number of processes of later lives."""
        return _PROCESSES_AFTER[self.processes] if KINDS[self.kind].resizes else self.processes

    def __str__(self) -> str:
        """Returns the trial for people."""
        where = "between two lives" if KINDS[self.kind].is_between_lives else f"at {self.point!r}"
        return f"{self.kind} {where} ({self.number}), {self.processes} process(es)"


def trial(kind: str, seed: int, point: str | None = None, processes: int = 1) -> Trial:
    """Returns a trial; the seed chooses what is left open."""
    about, choose = KINDS[kind], random.Random(f"{kind} {seed}")
    processes = 1 if about.overlaps else max(processes, about.processes)
    if point == "local save copied to a peer":
        processes = max(processes, 2)
    if about.is_between_lives:
        # Killed after the second save or the third, so that there is an older checkpoint.
        point = "local save committed" if about.local else "save verified"
        return Trial(kind, point, choose.randrange(2, 4), processes, seed)
    point = point or choose.choice(about.points)
    number = _which_time(point, choose)
    if about.overlaps and point == "manifest written":
        number = STEPS // SAVE_EVERY  # the last save: the next life has saved the same step
    return Trial(kind, point, number, processes, seed)


def _which_time(point: str, choose: random.Random) -> int:
    """Returns which time a point is reached, early enough that it is in any run."""
    if point in ("step", "batch", "state"):
        return choose.randrange(2, STEPS - 2)
    if point.startswith(("save", "manifest", "local save")):
        return choose.randrange(1, STEPS // SAVE_EVERY)
    return 1


def short_trials(seed: int) -> list[Trial]:
    """Returns trials that take less than three minutes in all: those without hangs and peers."""
    # A process whose save cannot begin must not leave another one waiting in that save.
    alone = trial("full disk", seed, "save begins", processes=2)
    first = trial("kill", 2 * seed, "step", processes=2)  # process 0 is no single point of failure
    return [*(trial(kind, seed, point) for kind, point in _SHORT), alone, first]


def long_trials(seed: int, count: int) -> list[Trial]:
    """Returns every point with every kind that strikes there, then random ones up to a number.

    At every point, also each of two processes is killed; at some, the first and last of four.
    """
    trials = [
        trial(kind, seed, point)
        for kind, about in KINDS.items()
        for point in (about.points if not about.is_between_lives else ("",))
    ]
    # The seed chooses the process: seed % processes.
    for point in KINDS["kill"].points:
        both = (0,) if point in _OF_PROCESS_0 else (0, 1)
        trials += [trial("kill", 2 * seed + index, point, processes=2) for index in both]
    for point in _OF_FOUR:
        trials += [trial("kill", 4 * seed + index, point, processes=4) for index in (0, 3)]
    choose = random.Random(seed)
    while len(trials) < count:
        kind = choose.choice(list(KINDS))
        processes = choose.choice((1, 1, 2, 4))
        trials.append(trial(kind, choose.randrange(10**6), processes=processes))
    return trials[:count]
