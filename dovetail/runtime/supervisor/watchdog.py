"""The watchdog: finds workers that are alive but make no progress.

Each phase has its own limit: a compilation takes longer than a step. The limit of a step grows with
the measured steps, so that slow hardware does not count as a hang.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Self

from dovetail.config import ConfigError
from dovetail.runtime.supervisor.channel import HeartbeatRecord
from dovetail.utils import format_duration

_SLOWEST_STEPS = 10
"""A step may take this many times as long as the slowest of the last ones."""
_REMEMBERED_STEPS = 20
_ABSURD = 10**6

_PHASE_SECONDS = {
    "start": 600.0,
    "compile": 3600.0,
    "restore": 1800.0,
    "save": 1800.0,
    "evaluate": 3600.0,
    "check": 3600.0,
    "end": 600.0,
}


@dataclass(frozen=True)
class Limits:
    """How many seconds a worker may go without progress, by phase."""

    step: float = 300.0
    phases: Mapping[str, float] = field(default_factory=_PHASE_SECONDS.copy)
    silence: float = 60.0
    """Without any message: the process is stopped, or a thread holds the GIL."""

    def __post_init__(self) -> None:
        """Raises a ConfigError that names the field."""
        check_range("step", self.step, 1)
        check_range("silence", self.silence, 1)
        for phase, seconds in self.phases.items():
            given = f"phases {phase}={seconds:g}"
            if phase not in _PHASE_SECONDS:
                raise ConfigError(f"{given}: expected a phase of {', '.join(_PHASE_SECONDS)}.")
            check_range(given, seconds, 1, " seconds")

    @classmethod
    def of(cls, step: float = 300.0, phases: Mapping[str, float] | None = None) -> Self:
        """Returns limits of which some are set.

        Args:
            step: the limit of a step. A worker may be silent as long, but between 5 s and 60 s:
                its messages come from a thread of their own.
            phases: limits of phases; the others keep their defaults.
        """
        silence = max(min(step, 60.0), 5.0)
        return cls(step=step, phases=_PHASE_SECONDS | dict(phases or {}), silence=silence)


def check_range(name: str, value: float, low: int, unit: str = "") -> None:
    """Raises a ConfigError for a setting of the supervisor below its least value, or absurd."""
    if not low <= value < _ABSURD:
        raise ConfigError(f"{name}: expected {low} or more{unit}, got {value:g}.")


@dataclass(frozen=True)
class Hang:
    """A worker without progress."""

    index: int
    phase: str
    step: int | None
    seconds: float
    is_silent: bool

    def __str__(self) -> str:
        """Returns a sentence for people."""
        where = f"in the phase {self.phase!r}"
        if self.phase == "step":
            where = "before its first step" if self.step is None else f"after step {self.step}"
        how = "sent nothing" if self.is_silent else "made no progress"
        return f"process {self.index} {how} for {format_duration(self.seconds)}, {where}"


class Watchdog:
    """Compares the heartbeats of all workers with the limits."""

    def __init__(self, limits: Limits) -> None:
        """Starts without a measured step."""
        self._limits = limits
        self._durations: deque[float] = deque(maxlen=_REMEMBERED_STEPS)
        self._last: tuple[int, float] | None = None

    def check(self, heartbeats: Mapping[int, HeartbeatRecord]) -> Hang | None:
        """Returns the worker that hangs, if one does.

        A worker without messages hangs. A worker without progress may just wait for another one,
        which may still compile. So it hangs only if no worker makes progress.
        """
        self._measure(heartbeats)
        now = time.monotonic()
        silent, stuck = [], []
        for index, beat in heartbeats.items():
            # Imports come before the first message, and `end` is sent with the last one.
            sends = bool(beat.facts) and beat.phase != "end"
            if sends and now - beat.received > self._limits.silence:
                silent.append(
                    Hang(index, beat.phase, beat.step, now - beat.received, is_silent=True)
                )
            elif now - beat.progressed > self._limit(beat.phase):
                waited = now - beat.progressed
                stuck.append(Hang(index, beat.phase, beat.step, waited, is_silent=False))
        if silent:
            return silent[0]
        if len(stuck) < len(heartbeats):
            return None
        # All wait for the one that has done the fewest steps, or came there last.
        return min(stuck, key=lambda hang: (hang.step or 0, hang.seconds), default=None)

    def _limit(self, phase: str) -> float:
        if phase == "step":
            slowest = max(self._durations, default=0.0)
            return max(self._limits.step, _SLOWEST_STEPS * slowest)
        return self._limits.phases.get(phase, self._limits.step)

    def _measure(self, heartbeats: Mapping[int, HeartbeatRecord]) -> None:
        """Measures how long steps take, by process 0."""
        beat = heartbeats.get(0)
        if beat is None or beat.step is None or beat.phase != "step":
            self._last = None
            return
        if self._last is not None and beat.step > self._last[0]:
            steps = beat.step - self._last[0]
            self._durations.append((beat.progressed - self._last[1]) / steps)
        self._last = (beat.step, beat.progressed)
