"""Fault policies: stop, leave out the batch of a spike, tell a bad batch from bad hardware.

    dovetail train tiny-lm faults=SkipSpikes
    dovetail train tiny-lm faults=ReplayFaults

By default (`StopOnFaults`) a person decides. On a pod, `ReplayFaults` continues automatically, and
stops only if the same step computes two different results.

A policy is a child of the trainer, so a new one is a class in one file. It overrides the methods of
the events that it decides, and inherits a safe answer to all others:

    class StopOnSpikes(StopOnFaults):
        def on_step_end(self, event: StepEnd) -> FaultAction:
            if event.loss < 100:
                return Continue()
            return Stop(f"Step {event.step}: the loss is {event.loss}.")
"""

from __future__ import annotations

import struct
from collections import deque
from statistics import median

from dovetail.config import Component, ConfigError, ConfigOf
from dovetail.runtime.faults import (
    BadState,
    Continue,
    CorruptResult,
    FailedSave,
    FaultAction,
    FaultEvent,
    FaultPolicy,
    NonFiniteStep,
    RollBack,
    StepEnd,
    Stop,
)

# The median of absolute deviations times this estimates the standard deviation of a normal sample.
_DEVIATIONS = 1.4826
_REMEMBERED_STEPS = 10_000


class StopOnFaults(Component):
    """Stops when a step or the state is not finite, or corrupt; the newest checkpoint is good.

    Training continues after a failed save: the next one tries again. A policy that inherits from
    this one overrides the methods of the events that it decides otherwise.
    """

    class Config(Component.Config["StopOnFaults"]):
        """It has no settings."""

    def on_event(self, event: FaultEvent) -> FaultAction:
        """Asks the method for this kind of event."""
        match event:
            case StepEnd():
                return self.on_step_end(event)
            case NonFiniteStep():
                return self.on_non_finite_step(event)
            case BadState():
                return self.on_bad_state(event)
            case FailedSave():
                return self.on_failed_save(event)
            case CorruptResult():
                return self.on_corrupt_result(event)

    def on_step_end(self, event: StepEnd) -> FaultAction:
        """Continues."""
        return Continue()

    def on_non_finite_step(self, event: NonFiniteStep) -> FaultAction:
        """Stops."""
        return Stop(event.message)

    def on_bad_state(self, event: BadState) -> FaultAction:
        """Stops."""
        return Stop(event.message)

    def on_failed_save(self, event: FailedSave) -> FaultAction:
        """Continues: earlier checkpoints are there, and the next save tries again."""
        return Continue()

    def on_corrupt_result(self, event: CorruptResult) -> FaultAction:
        """Stops."""
        return Stop(event.message)


class SkipSpikes(StopOnFaults):
    """Leaves out the batch of a step whose loss or gradient norm is far outside of the usual.

    The median is over the last steps. Deviations are in robust standard deviations, so that one
    spike does not hide the next. A step that is not finite is skipped, too. The first corrupt
    result that does not repeat itself is rolled back, and its batch is used again. Any other
    corrupt result stops the run.
    """

    class Config(StopOnFaults.Config):
        """The threshold in standard deviations, the window in steps, and when to give up.

        Attributes:
            threshold: how many robust standard deviations above the median a spike is.
            window: the number of steps of the median.
            warmup: the number of steps before any step can be a spike.
            max_skips: stops if more batches are skipped in one life: the cause is not the data.
        """

        threshold: float = 10.0
        window: int = 128
        warmup: int = 32
        max_skips: int = 16

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        if not config.threshold > 0 or not 2 <= config.warmup <= config.window:
            raise ConfigError(
                f"faults: expected threshold > 0 and 2 <= warmup <= window, got "
                f"{config.threshold}, {config.warmup} and {config.window}."
            )
        self._recent: dict[str, deque[float]] = {
            name: deque(maxlen=config.window) for name in ("loss", "gradient norm")
        }
        self._skips = self._corruptions = 0

    def on_step_end(self, event: StepEnd) -> FaultAction:
        """Rolls back without the batch of a spike."""
        values = {"loss": event.loss, "gradient norm": event.gradient_norm}
        spike = next(filter(None, (self._spike(*item) for item in values.items())), None)
        if spike is not None:
            return self._skip(f"Step {event.step}: {spike}.")
        for name, value in values.items():
            self._recent[name].append(value)
        return Continue()

    def on_non_finite_step(self, event: NonFiniteStep) -> FaultAction:
        """Rolls back without the batch."""
        return self._skip(event.message)

    def on_corrupt_result(self, event: CorruptResult) -> FaultAction:
        """Rolls back the first one, if it does not repeat itself."""
        self._corruptions += 1
        if event.persists or self._corruptions > 1:
            return Stop(event.message)
        return RollBack(event.message, skip_batch=False)

    def _spike(self, name: str, value: float) -> str | None:
        """Returns a sentence about a value that is a spike, or None."""
        recent, config = self._recent[name], self.config
        assert isinstance(config, SkipSpikes.Config)
        if len(recent) < config.warmup:
            return None
        center = median(recent)
        deviation = _DEVIATIONS * median(abs(each - center) for each in recent)
        # A constant loss has no deviation; a hundredth of it is no spike yet.
        deviation = max(deviation, abs(center) * 1e-2, 1e-12)
        excess = (value - center) / deviation
        if excess <= config.threshold:
            return None
        return (
            f"the {name} is {value:.4g}, {excess:.0f} robust standard deviations above its median "
            f"of {center:.4g}"
        )

    def _skip(self, reason: str) -> FaultAction:
        config = self.config
        assert isinstance(config, SkipSpikes.Config)
        self._skips += 1
        if self._skips > config.max_skips:
            return Stop(
                f"{reason} That is the {self._skips}th batch to leave out, more than "
                f"faults.max_skips={config.max_skips}: it is not the data."
            )
        return RollBack(reason)


class ReplayFaults(Component):
    """Replays the steps before a fault, to tell whether it repeats itself.

    If the replay computes another loss for any step, the hardware is at fault: the run stops and
    names the step with two results. Otherwise `policy` answers.
    """

    class Config(Component.Config["ReplayFaults"]):
        policy: ConfigOf[FaultPolicy] = SkipSpikes.Config()

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self._policy = config.policy.build()
        self._bits: dict[int, bytes] = {}
        self._replayed: tuple[int, FaultAction] | None = None

    def on_event(self, event: FaultEvent) -> FaultAction:
        """Asks for a replay when a fault first occurs."""
        if isinstance(event, FailedSave | BadState | CorruptResult):
            return self._policy.on_event(event)
        difference = self._compare(event)
        if difference is not None:
            return Stop(difference)
        if self._replayed is not None and event.step < self._replayed[0]:
            return Continue()  # a step of the replay, which the policy has judged already
        if self._replayed is not None and event.step == self._replayed[0]:
            (_, action), self._replayed = self._replayed, None
            return action
        action = self._policy.on_event(event)
        if isinstance(action, Continue):
            return action
        self._replayed = (event.step, action)
        reason = f"{action.reason} Replaying it."
        return RollBack(reason, skip_batch=False, from_checkpoint=True)

    def _compare(self, event: StepEnd | NonFiniteStep) -> str | None:
        """Returns how a step differs from its first computation; None if it does not."""
        bits = _bits(event)
        before = self._bits.get(event.step)
        in_replay = self._replayed is not None and event.step <= self._replayed[0]
        if in_replay and before is not None and before != bits:
            self._replayed = None
            return (
                f"Step {event.step} computed two different results from the same state and data: "
                f"{_describe(before)}, then {_describe(bits)}. That is a fault of the hardware."
            )
        self._bits[event.step] = bits
        self._bits.pop(event.step - _REMEMBERED_STEPS, None)
        return None


def _bits(event: StepEnd | NonFiniteStep) -> bytes:
    """Returns the results of a step, bit for bit."""
    if isinstance(event, NonFiniteStep):
        return event.message.encode()
    return struct.pack("<dd", event.loss, event.gradient_norm)


def _describe(bits: bytes) -> str:
    if len(bits) != struct.calcsize("<dd"):
        return bits.decode()
    loss, norm = struct.unpack("<dd", bits)
    return f"loss {loss!r} and gradient norm {norm!r}"
