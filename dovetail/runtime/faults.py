"""Faults: the training loop reports events to a policy, which answers with an action.

Here are the events, the actions and their record. The policies are in `fault_policies.py`.

A step or a state that is not finite, and a corrupt result, cannot be continued: the answer must be
`Stop` or `RollBack`. Hangs, lost processes and preemptions are not events. A process that hangs or
is gone cannot ask its own policy, so the supervisor decides (`runtime/supervisor/`).
"""

from __future__ import annotations

import json
import logging
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Protocol

from dovetail.config import ConfigError, StorageError
from dovetail.utils import atomic_write

_LOG = logging.getLogger("dovetail")

Skips = tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class StepEnd:
    """A step ended, and its numbers are finite. Steps count from 1."""

    step: int
    loss: float
    gradient_norm: float


@dataclass(frozen=True)
class NonFiniteStep:
    """The loss or a gradient of a step is not finite. The step has not changed the state."""

    step: int
    message: str


@dataclass(frozen=True)
class BadState:
    """An array of the state after a step is not finite, so it was not saved."""

    step: int
    message: str


@dataclass(frozen=True)
class FailedSave:
    """The state after a step could not be saved. Earlier checkpoints remain."""

    step: int
    message: str


@dataclass(frozen=True)
class CorruptResult:
    """A device computed something wrong, or its copy of an array differs from the others.

    Attributes:
        step: the step that was checked. The state after it is suspect; 0 is before the first step.
        message: a sentence that names the devices.
        devices: the devices that may be at fault; empty if unknown.
        persists: whether the fault repeats itself.
        verified: the last step that a check found good, or the step at which training started.
    """

    step: int
    message: str
    devices: tuple[str, ...]
    persists: bool
    verified: int


FaultEvent = StepEnd | NonFiniteStep | BadState | FailedSave | CorruptResult


@dataclass(frozen=True)
class Continue:
    """Continues."""


@dataclass(frozen=True)
class Stop:
    """Ends the run with an error. Nothing is saved: the newest verified checkpoint stands."""

    reason: str


@dataclass(frozen=True)
class RollBack:
    """Goes back to the newest good state.

    This is the newest checkpoint. After a step that is not finite it is the state in memory, unless
    another such step follows soon.

    Attributes:
        reason: a sentence for people.
        skip_batch: never trains on the batch of the step again. The run folder records it, and
            later steps move up.
        from_checkpoint: always restores a checkpoint, never the state in memory.
    """

    reason: str
    skip_batch: bool = True
    from_checkpoint: bool = False


FaultAction = Continue | Stop | RollBack


class FaultPolicy(Protocol):
    """Decides what to do about faults. All processes of a run see the same events."""

    def on_event(self, event: FaultEvent, /) -> FaultAction:
        """Returns what to do about an event of any kind; the loop asks after every step and save.

        `StopOnFaults` has a method for each kind, with a safe answer: inherit from it.
        """
        ...


class FaultLog:
    """The records of faults in a run folder: `events.jsonl` and `skips.json`."""

    def __init__(self, folder: Path) -> None:
        """Takes the run folder; reads nothing yet."""
        self._events, self._skips = folder / "events.jsonl", folder / "skips.json"

    def record(self, event: FaultEvent, action: FaultAction, resumed_at: int | None) -> None:
        """Appends an event and the action that followed."""
        entry = {
            "time": round(time.time(), 3),
            "event": type(event).__name__,
            **asdict(event),
            "action": type(action).__name__,
            **asdict(action),
            "resumed_at": resumed_at,
        }
        try:
            with self._events.open("a", encoding="utf-8") as file:
                file.write(json.dumps(entry) + "\n")
        except OSError as error:  # a full disk, for example; the action does not depend on it
            _LOG.warning("A %s is not recorded in %s: %s", entry["event"], self._events, error)

    def skips(self) -> Skips:
        """Returns the recorded ranges of batches that this run skips."""
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
        """Records the batches that the run skips from now on."""
        try:
            atomic_write(self._skips, json.dumps(skips) + "\n")
        except OSError as error:
            raise StorageError(
                f"{self._skips} cannot be written ({error}), so a later start of this run would "
                "train on batches that this one skips. Free the disk, and resume."
            ) from error
