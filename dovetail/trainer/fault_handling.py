"""Between the training loop and its fault policy: events of steps, batches to leave out, errors."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

import jax

from dovetail.config import ConfigError, Error
from dovetail.data import CanSkipBatches, Input
from dovetail.learner import StepReport
from dovetail.module import Module, parameter_specs
from dovetail.runtime import (
    BadState,
    CorruptResult,
    FaultAction,
    FaultEvent,
    FaultLog,
    FaultPolicy,
    NonFiniteStep,
    RollBack,
    Skips,
    StepEnd,
    Stop,
)

_FEW_STEPS = 20


class FaultError(Error, RuntimeError):
    """The fault policy stopped the run."""


class NonFiniteError(FaultError):
    """The loss or a gradient was not finite. The newest checkpoint is from before."""


class FaultyDeviceError(FaultError):
    """A device computes wrong results, again and again. A restart on it would not help."""


class FaultHandler:
    """Asks the policy about every step, and applies its answer to the input.

    Attributes:
        fault: the event that ended the steps, and the answer to it; None while steps go on.
    """

    def __init__(self, policy: FaultPolicy, source: Input, model: Module, folder: Path) -> None:
        self._policy, self._source, self._model = policy, source, model
        self._log = FaultLog(folder)
        self._skips: Skips = ()
        self.fault: tuple[FaultEvent, Stop | RollBack] | None = None
        self._kept_in_memory: int | None = None
        """The step to which the last rollback went in memory."""

    def recorded_skips(self) -> Skips:
        """Returns the ranges of batches that the run has recorded. Process 0 reads them for all."""
        return self._log.skips()

    def skip(self, skips: Sequence[Sequence[int]]) -> None:
        """Makes the input skip ranges of batches from now on."""
        self._skips = tuple((first, end) for first, end in skips)
        if self._skips:
            self._skipping().skip_batches(self._skips)

    def check(self, step: int, report: StepReport) -> bool:
        """Returns whether training may go on after a step."""
        self.ask(self._event(step, report))
        return self.fault is None

    def ask(self, event: FaultEvent) -> None:
        """Asks the policy about an event. `fault` is set if training may not go on."""
        action = self._policy.on_event(event)
        if self.fault is not None:
            return  # training has ended already
        if isinstance(action, Stop | RollBack):
            self.fault = (event, action)
        elif isinstance(event, NonFiniteStep | BadState | CorruptResult):
            raise ConfigError(
                f"faults: {type(self._policy).__name__} answers {action} to "
                f"{type(event).__name__}, which cannot be continued. Stop, or roll back."
            )

    def wants_rollback(self) -> bool:
        """Says whether the policy answered with a rollback."""
        return self.fault is not None and isinstance(self.fault[1], RollBack)

    def roll_back_in_memory(self) -> int | None:
        """Returns the step of the state in memory if it is to be used; None for a checkpoint.

        The learner skips a step that is not finite, so its cause may be the batch alone. If another
        such step follows soon, or the policy wants a replay, the state is not trusted: a flipped
        exponent bit, for example, leaves it finite.
        """
        assert self.fault is not None
        event, action = self.fault
        assert isinstance(action, RollBack)
        if not isinstance(event, NonFiniteStep) or action.from_checkpoint:
            return None
        before, self._kept_in_memory = self._kept_in_memory, event.step - 1
        if before is not None and event.step - before <= _FEW_STEPS:
            self._kept_in_memory = None
            return None
        return event.step - 1

    def settle(self, resumed_at: int) -> str:
        """Leaves out the batch of the fault if that is asked for; records it; returns the reason.

        Args:
            resumed_at: the step of the state that training goes back to.
        """
        assert self.fault is not None
        (event, action), self.fault = self.fault, None
        if isinstance(action, RollBack) and action.skip_batch:
            source = self._skipping()
            number = source.batch_number(event.step - 1)
            self.skip((*self._skips, (number, number + 1)))
            self._record(event, action, resumed_at)
            if jax.process_index() == 0:
                self._log.write_skips(self._skips)
        else:
            self._record(event, action, resumed_at)
        return action.reason

    def error(self) -> FaultError:
        """Returns the error that ends the run."""
        assert self.fault is not None
        event, action = self.fault
        self._record(event, action, None)
        if isinstance(event, BadState):
            return NonFiniteError(
                f"{action.reason} This state is not saved; the newest checkpoint is from before. "
                "Restart with a lower learning rate."
            )
        if isinstance(event, CorruptResult):
            kind = FaultyDeviceError if event.persists else FaultError
            return kind(f"{action.reason} The state after it is not saved.")
        if not isinstance(event, NonFiniteStep):
            return FaultError(f"{action.reason} The newest checkpoint is from before.")
        batch = event.step - 1
        return NonFiniteError(
            f"{action.reason} The newest checkpoint is from before. Resume as it is, in case a bit "
            f"flipped; or without its data, with input.skips=(({batch},{batch + 1}),); or restart "
            "with a lower learning rate. --debug-nans finds the operation."
        )

    def _event(self, step: int, report: StepReport) -> FaultEvent:
        if report.finite:
            return StepEnd(step, float(report.loss), float(report.gradient_norm))
        index, paths = int(report.non_finite_parameter), sorted(parameter_specs(self._model))
        extras = [name for name, finite in report.finite_extras.items() if not finite]
        where = f"the gradient of {paths[index]}" if index >= 0 else "the loss"
        if index < 0 and extras and math.isfinite(report.loss):
            where = f"{extras[0]} (an extra of the gradient computation)"
        return NonFiniteStep(
            step,
            f"Step {step}: {where} is not finite (loss {float(report.loss)}, gradient norm "
            f"{float(report.gradient_norm)}).",
        )

    def _record(self, event: FaultEvent, action: FaultAction, resumed_at: int | None) -> None:
        if jax.process_index() == 0:
            self._log.record(event, action, resumed_at)

    def _skipping(self) -> CanSkipBatches:
        if not isinstance(self._source, CanSkipBatches):
            raise ConfigError(
                f"faults: the input, {type(self._source).__name__}, cannot leave out batches (it "
                "has no method skip_batches). Use a policy that does not skip, or extend the input."
            )
        return self._source
