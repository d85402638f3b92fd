"""Trials: the faults and points of the short form, of the long form, or of one trial."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

from dovetail.config import ConfigError, did_you_mean
from dovetail.runtime.chaos.kinds import CONTROLS, KINDS, LOCAL_SAVING

STEPS = 12
SAVE_EVERY = 3

_PROCESSES_AFTER = {1: 2, 2: 1, 4: 2}

_OF_PROCESS_0 = (
    *("life taken", "save synced", "manifest written", "manifest renamed", "checkpoint removed"),
)
"""The points that no other process reaches."""

_OF_FOUR = ("step", "step compiled", "save written", "restore read")

_SHORT = (
    ("kill", "manifest renamed"),
    ("kill", "restore read"),
    ("segfault", "step"),
    ("full disk", "save written"),
    ("I/O error", "save begins"),
    ("full tmpfs", "step"),
    ("SIGTERM", "step compiled"),
    ("SIGUSR1", "step"),
    ("flipped bit", None),
    ("truncated file", None),
    ("renamed checkpoint", None),
    ("flipped bit in all local copies", None),
    ("flipped exponent", None),
    ("NaN batch", None),
    ("power cut", "manifest renamed"),
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
        when = "after a kill at" if KINDS[self.kind].is_between_lives else "at"
        return f"{self.kind} {when} {self.point!r} ({self.number}), {self.processes} process(es)"


def trial(kind: str, seed: int, point: str | None = None, processes: int = 1) -> Trial:
    """Returns a trial; the seed chooses the values that are not given."""
    about, choose = KINDS[kind], random.Random(f"{kind} {seed}")
    processes = 1 if about.overlaps else max(processes, about.processes)
    if point == "local save copied to a peer":
        processes = max(processes, 2)
    point = point or choose.choice(about.points)
    if about.is_between_lives:
        # Killed at the second save or the third, so that there is an older checkpoint. The first
        # to be removed is that of the third save.
        number = 1 if point == "checkpoint removed" else choose.randrange(2, 4)
        return Trial(kind, point, number, processes, seed)
    number = _which_time(point, choose)
    if about.overlaps and point == "manifest written":
        number = STEPS // SAVE_EVERY  # the last save: the next life has saved the same step
    return Trial(kind, point, number, processes, seed)


def _which_time(point: str, choose: random.Random) -> int:
    """Returns the count at which a point triggers, low enough for every run."""
    if point in ("step", "batch", "state"):
        return choose.randrange(2, STEPS - 2)
    if point.startswith(("save", "manifest", "local save")):
        return choose.randrange(1, STEPS // SAVE_EVERY)
    return 1


def select_trials(
    seed: int,
    *,
    count: int | None = None,
    kinds: Sequence[str] = (),
    control: str | None = None,
) -> list[Trial]:
    """Returns the trials that a user asks for; a mistake is a ConfigError.

    Args:
        seed: repeats the same trials.
        count: the number of trials of the long form; None is the short form.
        kinds: only these kinds; one that the form lacks gets a trial of its own.
        control: the one trial of this control, which must fail.
    """
    if control is not None:
        if control not in CONTROLS:
            near = did_you_mean(control, CONTROLS)
            raise ConfigError(f"--control: there is no {control!r}. {near}")
        return [trial(CONTROLS[control], seed)]
    if count is not None and count < 1:
        raise ConfigError(f"--trials: expected 1 or more, got {count}.")
    for kind in kinds:
        if kind not in KINDS:
            raise ConfigError(f"--kinds: there is no {kind!r}. {did_you_mean(kind, KINDS)}")
    trials = short_trials(seed) if count is None else long_trials(seed, count)
    if not kinds:
        return trials
    chosen = [each for each in trials if each.kind in kinds]
    missing = [kind for kind in kinds if kind not in {each.kind for each in chosen}]
    return chosen + [trial(kind, seed) for kind in missing]


def short_trials(seed: int) -> list[Trial]:
    """Returns the short form: trials without hangs, and hardly any with peers."""
    # A process whose save cannot begin must not leave another one waiting in that save.
    alone = trial("full disk", seed, "save begins", processes=2)
    first = trial("kill", 2 * seed, "step", processes=2)  # process 0 is no single point of failure
    return [*(trial(kind, seed, point) for kind, point in _SHORT), alone, first]


def long_trials(seed: int, count: int) -> list[Trial]:
    """Returns every point with every kind that strikes there, then random trials up to a number.

    Each of two processes is also killed at every point, and the first and last of four at some.
    """
    trials = [trial(kind, seed, point) for kind, about in KINDS.items() for point in about.points]
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
