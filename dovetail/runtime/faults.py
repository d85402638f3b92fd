"""Faults: the training loop tells a policy what happened, and the policy answers what to do.

A policy is a child of the trainer, so a new one is a class in one file:

    class StopOnSpikes(Component):
        def on_event(self, event: FaultEvent) -> FaultAction:
            if isinstance(event, StepEnd) and event.loss < 100:
                return Continue()
            return Stop(f"step {event.step} is bad")
"""

from __future__ import annotations

import json
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Protocol

from dovetail.config import Component, ConfigError
from dovetail.utils import atomic_write

Skips = tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class StepEnd:
    """A step ended, and its numbers are finite. Steps count from 1."""

    step: int
    loss: float
    gradient_norm: float


@dataclass(frozen=True)
class NonFiniteStep:
    """The loss or a gradient of a step is not finite. The state is still that before the step."""

    step: int
    message: str


@dataclass(frozen=True)
class BadState:
    """An array of the state is not finite, so the state after a step was not saved."""

    step: int
    message: str


@dataclass(frozen=True)
class FailedSave:
    """The state after a step could not be saved. Earlier checkpoints are there."""

    step: int
    message: str


@dataclass(frozen=True)
class CorruptResult:
    """A device computed something wrong, or its copy of an array differs from the others.

    Attributes:
        step: the step that was checked. The state after it is suspect; 0 is before the first step.
        message: a sentence that names the devices.
        devices: those that may be at fault; none if that cannot be told.
        persists: whether the fault repeats itself.
        verified: the last step that a check found good, or the step at which training went on.
    """

    step: int
    message: str
    devices: tuple[str, ...]
    persists: bool
    verified: int


FaultEvent = StepEnd | NonFiniteStep | BadState | FailedSave | CorruptResult


@dataclass(frozen=True)
class Continue:
    """Goes on."""


@dataclass(frozen=True)
class Stop:
    """Ends the run with an error; the newest good state is saved."""

    reason: str


@dataclass(frozen=True)
class RollBack:
    """Goes back to the newest good state.

    That is the newest checkpoint. After a step that is not finite it is the state in memory, unless
    another such step follows soon.

    Attributes:
        reason: a sentence for people.
        skip_batch: the batch of the step is never trained on again: it is recorded in the run
            folder, and later steps move up.
        from_checkpoint: never takes the state in memory.
    """

    reason: str
    skip_batch: bool = True
    from_checkpoint: bool = False


FaultAction = Continue | Stop | RollBack


class FaultPolicy(Protocol):
    """Decides what to do about faults. All processes of a run see the same events."""

    def on_event(self, event: FaultEvent, /) -> FaultAction:
        """Returns what to do about an event; the loop asks after every step."""
        ...


class StopOnFaults(Component):
    """Stops when a step or the state is not finite, or corrupt; the newest checkpoint is good.

    Training continues after a failed save: the next one tries again.
    """

    def on_event(self, event: FaultEvent) -> FaultAction:
        """Stops at what is not finite, or corrupt."""
        if isinstance(event, NonFiniteStep | BadState | CorruptResult):
            return Stop(event.message)
        return Continue()


class FaultLog:
    """What happened to a run, in its folder: `events.jsonl`, and `skips.json`."""

    def __init__(self, folder: Path) -> None:
        """Reads nothing yet."""
        self._events, self._skips = folder / "events.jsonl", folder / "skips.json"

    def record(self, event: FaultEvent, action: FaultAction, resumed_at: int | None) -> None:
        """Appends an event, with what was done about it."""
        entry = {
            "time": round(time.time(), 3),
            "event": type(event).__name__,
            **asdict(event),
            "action": type(action).__name__,
            **asdict(action),
            "resumed_at": resumed_at,
        }
        with self._events.open("a", encoding="utf-8") as file:
            file.write(json.dumps(entry) + "\n")

    def skips(self) -> Skips:
        """Returns the recorded ranges of batches that this run leaves out."""
        if not self._skips.exists():
            return ()
        try:
            ranges = json.loads(self._skips.read_text(encoding="utf-8"))
            return tuple((int(first), int(end)) for first, end in ranges)
        except (ValueError, TypeError) as error:
            raise ConfigError(
                f"{self._skips} cannot be read ({error}), so the data that this run leaves out is "
                "not known. Restore it from a copy; `[]` means none."
            ) from error

    def write_skips(self, skips: Skips) -> None:
        """Records the batches that the run leaves out from now on."""
        atomic_write(self._skips, json.dumps(skips) + "\n")
