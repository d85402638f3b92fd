"""The training loop: load a batch, run the step, log metrics, evaluate, save, stop.

Steps are dispatched asynchronously. Their reports are read up to `max_steps_in_flight` steps late,
so that the devices always have work. If a step is not finite, the learner skips it and all after
it, so the state is still the last good one. What to do about that, or about a spike, is the answer
of the trainer's fault policy.
"""

from __future__ import annotations

import contextlib
import contextvars
import functools
import logging
import math
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jax

from dovetail.config import Error
from dovetail.data import HasPreparedData, Prefetcher
from dovetail.kernels import choices
from dovetail.learner import StepReport, TrainState, averaged_parameters, clear_halt
from dovetail.parallel import HostConsensus, max_steps_in_flight, use_placement
from dovetail.runtime import (
    AgreementError,
    BackgroundWriter,
    BadState,
    FaultEvent,
    Phases,
    StopRequest,
    Stragglers,
    abstract_state,
    open_agreement,
    pass_through,
    reach,
    suspects,
    take_life,
)
from dovetail.trainer.fault_handling import FaultError, FaultHandler, FaultyDeviceError
from dovetail.trainer.interfaces import CanDistrust, Evaluation, RunsWithPeers
from dovetail.trainer.program import compile_step
from dovetail.trainer.step_metrics import StepTimer, report_metrics
from dovetail.utils import BackgroundCall

if TYPE_CHECKING:
    from dovetail.trainer.trainer import Trainer

_LOG = logging.getLogger("dovetail")

_SECONDS_BETWEEN_POLLS = 0.5

_COMPILED = "the step is compiled"
_STOPPED = "stopped by"
_LEAVE_SECONDS = 30.0
_QUESTIONS_PER_SECOND = 100.0  # to process 0, of all processes together
_COMPILE_SECONDS = 86400.0  # the watchdog has a limit for this; a dead peer ends the process

# Processes of a run may start this far apart.
_PEER_SECONDS = 300.0


class Interrupted(KeyboardInterrupt):
    """Training was stopped by a signal; the same call continues it."""


@dataclass
class Outcome:
    """How a run ended."""

    step: int
    stopped_by: str | None = None
    saved: bool = True
    losses: list[tuple[int, float]] = field(default_factory=list)
    metrics: dict[str, float | int | str] = field(default_factory=dict)
    seconds: float = 0.0

    def problem(self, folder: Path) -> str | None:
        """Returns what is wrong with how a run ended; None if nothing is."""
        if not self.saved:
            return f"the last save failed; {folder}/checkpoints holds the one before it."
        for name, value in self.metrics.items():
            if isinstance(value, float) and math.isnan(value):
                return f"after the last step, {name} is not a number. Lower the learning rate."
        return None


@dataclass(frozen=True)
class Hooks:
    """Callbacks of a training loop."""

    log: Callable[[str], None] = _LOG.info
    debug_nans: bool = False
    # Called with each step's number. If it returns a context, the step runs inside it.
    around_step: Callable[[int], contextlib.AbstractContextManager[Any] | None] | None = None
    # When the start of the run began, on the monotonic clock.
    started: float = field(default_factory=time.monotonic)


class TrainingLoop:
    """One run of a trainer in one folder."""

    def __init__(
        self, trainer: Trainer, folder: Path, hooks: Hooks | None, stop: StopRequest | None
    ) -> None:
        """Stores the arguments; `run` does the work."""
        self.trainer, self.folder = trainer, folder
        self.hooks, self.stop = hooks or Hooks(), stop or StopRequest()
        self.pending: deque[tuple[int, StepReport]] = deque()
        self.outcome = Outcome(0)
        self.faults = FaultHandler(trainer.faults, trainer.input, trainer.model, folder)
        self.phases = Phases(jax.process_index(), self.hooks.started)
        self._stopping = False
        writers = trainer.writers if jax.process_index() == 0 else {}  # one process writes
        self._writers = [BackgroundWriter(name, writer) for name, writer in writers.items()]

    def run(self) -> Outcome:
        """Trains to the last step, or until a signal."""
        with self.phases:
            self._begin_life()
            try:
                outcome = self._run()
                reach("run finished")
            except (Error, KeyboardInterrupt) as error:
                if isinstance(error, FaultError):
                    self.phases.halt(str(error), not isinstance(error, FaultyDeviceError))
                self._end_life(type(error).__name__)
                raise
            self._end_life("stopped" if outcome.stopped_by else "done")
        return outcome

    def _run(self) -> Outcome:
        started = time.monotonic()
        self.program = self.trainer.program()
        mesh = self.program.placement.device_mesh
        self.max_in_flight = max_steps_in_flight(mesh)
        self.consensus = HostConsensus(mesh, self.max_in_flight)
        with (
            self.stop,
            use_placement(self.program.placement),
            self.trainer.kernels.in_force(),
        ):
            self._prepare()
            self._check_devices()
            with self.phases.phase("compile"):
                state, first, train_step = self._initialize_and_compile()
            self._each_writer(lambda writer: writer.open(self.folder, first))
            try:
                state = self._train(state, first, train_step)
                while self.faults.wants_rollback():
                    state, first = self._roll_back(state)
                    state = self._train(state, first, train_step)
                self._finish(state)
            finally:
                # Even after an error, a save that has begun is completed.
                with self.phases.phase("save"):
                    self.outcome.saved = self.trainer.checkpointer.finish()
                self._each_writer(lambda writer: writer.close())
        self._ask_about_saves()
        if self.faults.fault is not None:
            raise self.faults.error()
        self.outcome.seconds = time.monotonic() - started
        return self.outcome

    def _begin_life(self) -> None:
        """Numbers this start of the run, so that an earlier one that wakes up cannot commit."""
        self.trainer.checkpointer.open(self.folder / "checkpoints")
        number, past, skips = 0, list[int](), list[Any]()
        with self.phases.phase("peers"):
            self.agreement, self.life = open_agreement(), None
            if self.agreement.index == 0:
                lives = self.folder / "lives"
                try:
                    self.life = take_life(lives)
                    number, past = self.life.number, sorted(suspects(lives, self.life.number))
                    skips = list(self.faults.recorded_skips())
                except (Error, OSError) as error:  # the others need not wait
                    self.agreement.withdraw("this life", str(error))
                    raise
            answers = self.agreement.gather("this life", (number, past, skips), _PEER_SECONDS)
        number, past, skips = answers[0]
        self.faults.skip(skips)
        self.stragglers = Stragglers(self.agreement)
        self.phases.open(self.folder, number)
        if isinstance(self.trainer.checkpointer, RunsWithPeers):
            self.trainer.checkpointer.start(self.agreement, self.life, frozenset(past))

    def _end_life(self, how: str) -> None:
        if isinstance(self.trainer.checkpointer, RunsWithPeers):
            self.trainer.checkpointer.close()
        if self.life is not None:
            self.life.ended(how)
        self.agreement.close()

    def _prepare(self) -> None:
        """Prepares the data, without what the run leaves out; logs what is suspicious about it."""
        source = self.trainer.input
        if isinstance(source, HasPreparedData):
            source.prepare()
            for warning in source.warnings(self.trainer.steps):
                self.hooks.log(f"warning: {warning}")

    def _check_devices(self) -> None:
        """Ends the run before its first step if a device is faulty."""
        mesh = self.program.placement.device_mesh
        found = self.trainer.preflight.check(mesh, self.agreement)
        if found is not None:
            self.faults.ask(found)
            raise self.faults.error()

    def _initialize_and_compile(self) -> tuple[TrainState, int, Any]:
        """Compiles the step in a thread while the state is initialized or restored."""
        compiling = BackgroundCall(contextvars.copy_context().run, self._compile)
        try:
            state, first = self._restore_or_initialize()
            self._wait_until_compiled(compiling)
            train_step = compiling.result()
        except BaseException as error:
            # The others wait for this process; a request to stop has told them already.
            self.agreement.withdraw(_COMPILED, f"{type(error).__name__}: {error}")
            compiling.abandon()
            raise
        reach("step compiled")
        return state, first, train_step

    def _wait_until_compiled(self, compiling: BackgroundCall) -> None:
        """Waits until all processes have compiled the step.

        A request to stop one of them ends the wait of all. Nothing has to be saved: the state is a
        saved one, or the initial one.
        """
        seconds = max(_SECONDS_BETWEEN_POLLS, self.agreement.count / _QUESTIONS_PER_SECOND)
        while not compiling.done(seconds):
            self._leave_if_asked()
        compiling.result()  # raises an error of the compiler
        everywhere = BackgroundCall(self.agreement.gather, _COMPILED, None, _COMPILE_SECONDS)
        while not everywhere.done(_SECONDS_BETWEEN_POLLS):
            if self._is_asked_to_stop():
                self.agreement.withdraw(_COMPILED, f"{_STOPPED} {self.stop.received}")
        try:
            everywhere.result()  # if all were compiled before, they stop together after a step
        except AgreementError as error:
            self._leave(str(error))

    def _leave_if_asked(self) -> None:
        """Ends this process before its first step if any process was asked to stop, or failed."""
        if self._is_asked_to_stop():
            reason = f"{_STOPPED} {self.stop.received}"
            self.agreement.withdraw(_COMPILED, reason)
            self._leave(reason)
        elif (found := self.agreement.withdrawn(_COMPILED)) is not None:
            self._leave(found)

    def _leave(self, reason: str) -> None:
        """Waits until the other processes know why, and raises."""
        if _STOPPED not in reason:
            raise AgreementError(f"Not all processes have compiled the step. {reason}")
        with contextlib.suppress(AgreementError):  # one may be restoring for long
            self.agreement.gather("all leave before the first step", None, _LEAVE_SECONDS)
        raise Interrupted(f"{reason} while the step was compiled; the same command continues")

    def _is_asked_to_stop(self) -> bool:
        self.stop.poll(self.folder, self.trainer.stop_notices)
        return self.stop.received is not None

    def _restore_or_initialize(self) -> tuple[TrainState, int]:
        """Restores the newest good checkpoint, or initializes the state."""
        like = abstract_state(self.program.state_shapes, self.program.state_shardings)
        # The step is compiled meanwhile; `compile` is what that takes longer.
        with self.phases.phase("restore"):
            found = self.trainer.checkpointer.restore(like)
        if self.life is not None:
            self.life.resumed_from(0 if found is None else found[0])
        if found is None:
            return self.trainer.initial_state(self.hooks.log), 0
        step, state = found
        self.hooks.log(f"resumed from step {step}")
        return state, step

    def _compile(self) -> Any:
        reach("compile begins")
        compiled = compile_step(self.program.lowered, self.hooks.log)
        for choice in choices():
            self.hooks.log(f"kernel {choice}")
        self.timer = StepTimer.of(self.program)
        self.hooks.log(self.timer.about)
        return compiled if not self.hooks.debug_nans else self.program.debug_step()

    def _train(self, state: TrainState, first: int, train_step: Any) -> TrainState:
        """Runs the steps. The returned state is that after `outcome.step`."""
        feed = Prefetcher(self.trainer.batch, first, self.trainer.steps)
        self.timer.start(first)
        self.stragglers.start(first)
        self.trainer.step_check.start(first, self.agreement, self._compile_on)
        self.outcome.step = first
        with feed, self.phases.steps(first):
            for step in range(first, self.trainer.steps):
                if not self._drain(self.max_in_flight) or self._stop_requested():
                    break
                reach("first step" if step == first else "step")
                with self.phases.phase("input"):
                    batch = pass_through("batch", next(feed))
                state = pass_through("state", state)
                state, report = self._step(step, train_step, state, batch)
                del batch  # freeing it takes a while on CPUs, and is no wait for input
                self.pending.append((step + 1, report))
                self.outcome.step = step + 1
                if step + 1 < self.trainer.steps:
                    self._between_steps(step + 1, state)
            self._drain(0)
        return state

    def _step(
        self, step: int, train_step: Any, state: TrainState, batch: Any
    ) -> tuple[TrainState, StepReport]:
        """Dispatches a step. A profiled step is blocked on, so that its trace is complete."""
        arguments = (state, batch, self.program.hyperparameters)
        is_due = self.trainer.step_check.due(step + 1) and not self.hooks.debug_nans
        if is_due and self._drain(0):
            train_step = functools.partial(self._checked, step + 1, train_step)
        around = self.hooks.around_step(step) if self.hooks.around_step is not None else None
        if around is None:
            with self.stragglers.waiting():
                result: tuple[TrainState, StepReport] = train_step(*arguments)
            return result
        with around:
            result = train_step(*arguments)
            # A state that is known to be corrupt is deleted already.
            return result if self.faults.fault else jax.block_until_ready(result)

    def _checked(
        self, step: int, train_step: Any, *arguments: Any
    ) -> tuple[TrainState, StepReport]:
        """Runs a step and checks its result; the fault policy is asked about one that is wrong."""
        with self.phases.phase("check"):
            result, found = self.trainer.step_check.run(step, train_step, arguments)
        if found is not None:
            self.faults.ask(found)
            if isinstance(self.trainer.checkpointer, CanDistrust):
                self.trainer.checkpointer.distrust(found.verified)
        return result

    def _compile_on(self, mesh: jax.sharding.Mesh) -> Any:
        """Compiles the step for the same devices in another order."""
        with self.timer.paused():
            return compile_step(self.trainer.program_on(mesh).lowered, self.hooks.log)

    def _between_steps(self, step: int, state: TrainState) -> None:
        """Evaluates and saves if due. Both block on the step, so pending reports are read first."""
        evaluators = [name for name, child in self.trainer.evaluators.items() if child.due(step)]
        saving = self.trainer.checkpointer.due(step)
        if not (evaluators or saving) or not self._drain(0):
            return
        if (slow := self.stragglers.compare(step)) is not None:
            self.phases.warn(slow)
            self.hooks.log(f"warning: {slow}")
        with self.timer.paused():
            for name in evaluators:
                if not self._stop_requested():
                    self._evaluate(name, step, state)
            if saving:
                self._save(step, state)
        self.stragglers.start(step)

    def _finish(self, state: TrainState) -> None:
        """Saves the last state, and evaluates it if the run is complete."""
        if self.faults.fault is not None:
            return  # the newest checkpoint is the newest state that is known to be good
        self._save(self.outcome.step, clear_halt(state), last=True)
        with self.phases.phase("save"):
            self.trainer.checkpointer.finish()
        self._ask_about_saves()
        is_complete = self.outcome.step == self.trainer.steps and self.faults.fault is None
        for name in self.trainer.evaluators if is_complete else ():
            if not self._stop_requested():
                self._evaluate(name, self.outcome.step, state)
        if self._stop_requested():
            self.outcome.stopped_by = self._stop_reason()

    def _evaluate(self, name: str, step: int, state: TrainState) -> None:
        evaluation = Evaluation(
            step,
            self.trainer.model,
            averaged_parameters(state),
            state.variables,
            self.trainer.input,
            self.program.placement,
            self.folder,
        )
        with self.phases.phase("evaluate"):
            result = self.trainer.evaluators[name].evaluate(evaluation)
        metrics = {f"{name}/{key}": value for key, value in result.items()}
        self.outcome.metrics.update(metrics)
        if isinstance(self.trainer.checkpointer, RunsWithPeers):
            self.trainer.checkpointer.evaluated(step, metrics)
        self._write(step, metrics)

    def _stop_requested(self) -> bool:
        """Returns whether any process received a signal, so that all stop at the same step."""
        received = self._is_asked_to_stop()
        with self.stragglers.waiting():
            self._stopping = self.consensus.any_host(received) or self._stopping
        return self._stopping

    def _stop_reason(self) -> str:
        """Returns what asked a process to stop. All processes call this after the same step."""
        own, reasons = self.stop.received, list[str | None]()
        with contextlib.suppress(AgreementError):  # another process has left already
            reasons = self.agreement.gather("stopped by", own, _LEAVE_SECONDS)
        others = (f"{each} to process {index}" for index, each in enumerate(reasons) if each)
        return own or next(others, "a signal to another process")

    def _drain(self, max_pending: int) -> bool:
        """Reads reports until `max_pending` remain. Returns whether training may go on."""
        while len(self.pending) > max_pending and self.faults.fault is None:
            step, report = self.pending.popleft()
            with self.stragglers.waiting():
                report = jax.device_get(report)
            if self.faults.check(step, report):
                self._log(step, report)
        return self.faults.fault is None

    def _save(self, step: int, state: TrainState, last: bool = False) -> None:
        checkpointer = self.trainer.checkpointer
        with self.phases.phase("save"):
            if last and isinstance(checkpointer, RunsWithPeers):
                checkpointer.save_last(step, state)
            else:
                checkpointer.save(step, state)
        self._ask_about_saves()

    def _ask_about_saves(self, discarded: type[FaultEvent] | tuple[()] = ()) -> None:
        """Asks the fault policy about saves that failed, or that had nothing good to save."""
        if isinstance(self.trainer.checkpointer, RunsWithPeers):
            for event in self.trainer.checkpointer.take_faults():
                if not isinstance(event, discarded):
                    self.faults.ask(event)

    def _roll_back(self, state: TrainState) -> tuple[TrainState, int]:
        """Returns the newest good state and its step; discards later results."""
        self.pending.clear()
        discarded: type[FaultEvent] | tuple[()] = ()
        if (step := self.faults.roll_back_in_memory()) is not None:
            state, first = clear_halt(state), step
        else:
            discarded = BadState  # of a state that is gone after this
            self.trainer.checkpointer.finish()
            jax.tree.map(lambda leaf: leaf.delete(), state)  # frees memory for the restored one
            state, first = self._restore_or_initialize()
        self.hooks.log(f"{self.faults.settle(first)} Rolled back to step {first}.")
        self._ask_about_saves(discarded)
        self.outcome.losses = [point for point in self.outcome.losses if point[0] <= first]
        self._each_writer(lambda writer: writer.close())
        self._each_writer(lambda writer: writer.open(self.folder, first))
        return state, first

    def _log(self, step: int, report: StepReport) -> None:
        self.timer.tick(step)
        self.phases.reached(step)
        if self.life is not None:
            self.life.reached(step)
        self.outcome.losses.append((step, float(report.loss)))
        if step % self.trainer.log_every == 0 or step == self.trainer.steps:
            metrics = report_metrics(report) | self.timer.metrics(step, self.trainer.steps)
            metrics |= self.phases.goodput()
            self.outcome.metrics.update(metrics)
            self._write(step, metrics)

    def _write(self, step: int, metrics: Any) -> None:
        self._each_writer(lambda writer: writer.write(step, metrics))

    def _each_writer(self, action: Callable[[BackgroundWriter], None]) -> None:
        """Calls each writer, in its thread; a failure loses metrics but does not stop training."""
        for writer in self._writers:
            action(writer)
