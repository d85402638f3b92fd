"""Intervals between saves, in steps or in minutes.

Clocks differ between hosts, but all processes must save at the same step. So process 0's clock
decides. All processes compute the same few steps at which they ask for it, closer and closer to the
time.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

_FIRST_READING = 8
_FRACTION = 0.9
"""The fraction of the estimated remaining steps before the clock is read again."""


class SaveInterval:
    """Decides after which steps to save; the same on all processes."""

    def __init__(
        self,
        steps: int,
        minutes: float | None,
        gather: Callable[[str, Any], list[Any]],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Starts to count.

        Args:
            steps: the number of steps between saves.
            minutes: the time between saves, whichever comes first; None for no limit.
            gather: asks all processes (`Agreement.gather`, with its deadline).
            clock: returns the time in seconds.
        """
        self._steps, self._gather, self._clock = steps, gather, clock
        self._seconds = None if minutes is None else minutes * 60
        self._last_time = clock()
        self._last_step: int | None = None
        self._next_reading: int | None = None

    def due(self, step: int) -> bool:
        """Says whether to save after this step. Called once after each step."""
        is_due = step % self._steps == 0 or self._is_time(step)
        if is_due:
            self._last_step, self._last_time = step, self._clock()
            self._next_reading = step + self._steps_to_reading(0.0, 0)
        return is_due

    def _is_time(self, step: int) -> bool:
        if self._seconds is None:
            return False
        has_rolled_back = self._last_step is not None and step <= self._last_step
        if has_rolled_back or self._last_step is None or self._next_reading is None:
            self._last_step, self._next_reading = step, step + _FIRST_READING
            return False
        if step < self._next_reading:
            return False
        now = self._clock() - self._last_time
        elapsed = float(self._gather(f"time since the last save, at step {step}", now)[0])
        if elapsed >= self._seconds:
            return True
        self._next_reading = step + self._steps_to_reading(elapsed, step - self._last_step)
        return False

    def _steps_to_reading(self, elapsed: float, steps: int) -> int:
        """Returns the number of steps until the clock is read again."""
        if not steps or self._seconds is None:
            return _FIRST_READING
        left = (self._seconds - elapsed) * steps / max(elapsed, 1e-6)
        return max(int(left * _FRACTION), 1)
