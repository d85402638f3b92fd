"""Restart decisions: a budget by cause, growing pauses, and an end at a step that always kills."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

_FATAL_LIVES = 4
"""So many lives that end at the same step for the same cause are enough. The first saves a
checkpoint, two that die with it make it suspect, and the next starts from an older one."""


@dataclass(frozen=True)
class Death:
    """The end of a life.

    Attributes:
        cause: what to count by, such as `crash by SIGKILL`.
        message: a sentence for people.
        step: the last step; None before the first.
        halt: the sentence with which a fault policy ended the run; empty if none did.
        restart_helps: whether another life on the same devices may do better.
    """

    cause: str
    message: str
    step: int | None
    halt: str = ""
    restart_helps: bool = True


@dataclass(frozen=True)
class Decision:
    """Restart after a pause, or give up for a reason."""

    pause: float = 0.0
    give_up: str | None = None


@dataclass
class Restarts:
    """Decides after each death; progress since the last one resets the pause."""

    per_cause: int = 10
    longest_pause: float = 60.0
    first_pause: float = 1.0
    _counts: Counter[str] = field(default_factory=Counter)
    _deaths: list[Death] = field(default_factory=list)
    _furthest: int = -1
    _in_a_row: int = 0

    @property
    def total(self) -> int:
        """How many lives have ended so far."""
        return len(self._deaths)

    def after(self, death: Death) -> Decision:
        """Returns the decision after a death."""
        self._deaths.append(death)
        self._counts[death.cause] += 1
        reached = -1 if death.step is None else death.step
        self._in_a_row = 0 if reached > self._furthest else self._in_a_row + 1
        self._furthest = max(self._furthest, reached)
        if not death.restart_helps:
            return Decision(give_up="a restart would use the same device")
        last = self._deaths[-_FATAL_LIVES:]
        if len(last) == _FATAL_LIVES and len({(each.cause, each.step) for each in last}) == 1:
            return Decision(give_up=self._always(death))
        if self._counts[death.cause] > self.per_cause:
            return Decision(
                give_up=f"that is more than {self.per_cause} restarts because of a {death.cause}"
            )
        return Decision(min(self.first_pause * 2**self._in_a_row, self.longest_pause))

    def _always(self, death: Death) -> str:
        if death.step is None:
            return f"{_FATAL_LIVES} lives ended before their first step"
        return (
            f"{_FATAL_LIVES} lives ended after step {death.step} in the same way, so step "
            f"{death.step + 1} always kills. If its data does, leave it out with "
            f"input.skips=(({death.step},{death.step + 1}),)"
        )
