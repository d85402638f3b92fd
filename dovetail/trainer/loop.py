"""The loop: feed, step, report, evaluate, save, stop. It waits for no figure before its time."""

from __future__ import annotations

import contextlib
import contextvars
import logging
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jax

from dovetail.data import Prefetcher
from dovetail.kernels import choices
from dovetail.learner import StepReport, TrainState, averaged_parameters, resumable
from dovetail.module import parameter_specs
from dovetail.parallel import Vote, placed, steps_ahead
from dovetail.runtime import StopRequest, abstract_state
from dovetail.trainer.feed import device_batch
from dovetail.trainer.figures import StepClock, report_figures
from dovetail.trainer.interfaces import Evaluation
from dovetail.trainer.repetition import repetition_warning
from dovetail.trainer.start import first_state

if TYPE_CHECKING:
    from dovetail.trainer.trainer import Trainer

_LOG = logging.getLogger("dovetail")


class NonFiniteError(RuntimeError):
    """A loss or gradient was not finite. The state on disk is the last good one."""


@dataclass
class Outcome:
    """How a run ended."""

    step: int
    stopped_by: str | None = None
    saved: bool = True
    losses: list[tuple[int, float]] = field(default_factory=list)
    figures: dict[str, float | int | str] = field(default_factory=dict)
    seconds: float = 0.0


@dataclass(frozen=True)
class Hooks:
    """What a caller may listen to."""

    say: Callable[[str], None] = _LOG.info
    debug_nans: bool = False
    # Called with each step's number; a step that it returns a context for runs inside it.
    around_step: Callable[[int], contextlib.AbstractContextManager[Any] | None] | None = None


class Loop:
    """One run of a trainer in one folder."""

    def __init__(
        self, trainer: Trainer, folder: Path, hooks: Hooks | None, stop: StopRequest | None
    ) -> None:
        """Prepares nothing yet."""
        self.trainer, self.folder = trainer, folder
        self.hooks, self.stop = hooks or Hooks(), stop or StopRequest()
        self.pending: deque[tuple[int, StepReport]] = deque()
        self.outcome = Outcome(0)
        self._halted: _Halted | None = None
        self._stopping = False
        self._mute_writers: set[str] = set()

    def run(self) -> Outcome:
        """Trains until the last step or a signal."""
        started = time.monotonic()
        self.program = self.trainer.program()
        # Reports are read so many steps late, so that the device has always a step to work on.
        mesh = self.program.placement.device_mesh
        self.ahead = steps_ahead(mesh)
        self.vote = Vote(mesh, self.ahead)
        self.trainer.checkpointer.open(self.folder / "checkpoints")
        with self.stop, placed(self.program.placement), self.trainer.kernels.in_force():
            self._prepare()
            state, first, step_function = self._start()
            self._each_writer(lambda writer: writer.open(self.folder, first))
            try:
                state = self._train(state, first, step_function)
                self._finish(state)
            finally:
                # Whatever happened, a save that has begun is completed.
                self.outcome.saved = self.trainer.checkpointer.finish()
                self._each_writer(lambda writer: writer.close())
        if self._halted is not None:
            raise NonFiniteError(self._halted.message(self.outcome.saved))
        self.outcome.seconds = time.monotonic() - started
        return self.outcome

    def _prepare(self) -> None:
        """Prepares the data, and warns where there is far too little of it."""
        prepared = self.trainer.input.prepare()
        batch, sequence = self.program.batch_spec.tokens.shape
        warning = repetition_warning(prepared, batch * sequence, self.trainer.steps)
        if warning is not None:
            self.hooks.say(warning)

    def _start(self) -> tuple[TrainState, int, Any]:
        """Compiles the step while the first state is made or restored; XLA leaves a core idle."""
        with ThreadPoolExecutor(1, thread_name_prefix="dovetail-compile") as thread:
            compiling = thread.submit(contextvars.copy_context().run, self._compile)
            state, first = self._first_state()
            return state, first, compiling.result()

    def _first_state(self) -> tuple[TrainState, int]:
        """Restores the newest good checkpoint, or makes the first state."""
        like = abstract_state(self.program.state_shapes, self.program.state_shardings)
        found = self.trainer.checkpointer.restore(like)
        if found is None:
            return first_state(self.program, self.trainer.start, self.hooks.say), 0
        step, state = found
        self.hooks.say(f"resumed from step {step}")
        return state, step

    def _compile(self) -> Any:
        started = time.monotonic()
        self.hooks.say("compiling the step; the next run finds it in the cache")
        compiled = self.program.lowered.compile()
        self.hooks.say(f"compiled the step in {time.monotonic() - started:.1f} s")
        for choice in choices():
            self.hooks.say(f"kernel {choice}")
        self.clock = StepClock.of(self.program)
        self.hooks.say(self.clock.about)
        return compiled if not self.hooks.debug_nans else self.program.debug_step()

    def _train(self, state: TrainState, first: int, step_function: Any) -> TrainState:
        """Runs the steps. The returned state is complete up to `outcome.step`."""
        feed = Prefetcher(self._batch, first, self.trainer.steps)
        self.clock.start(first)
        self.outcome.step = first
        with feed:
            for step in range(first, self.trainer.steps):
                if not self._drain(self.ahead) or self._asked_to_stop():
                    break
                state, report = self._step(step, step_function, state, next(feed))
                self.pending.append((step + 1, report))
                self.outcome.step = step + 1
                if step + 1 < self.trainer.steps:
                    self._between_steps(step + 1, state)
        self._drain(0)
        return state

    def _step(
        self, step: int, step_function: Any, state: TrainState, batch: Any
    ) -> tuple[TrainState, StepReport]:
        """Starts a step. Who looks on from around it wants to see it whole, so it is waited for."""
        around = self.hooks.around_step(step) if self.hooks.around_step is not None else None
        if around is None:
            result: tuple[TrainState, StepReport] = step_function(state, batch)
            return result
        with around:
            return jax.block_until_ready(step_function(state, batch))

    def _between_steps(self, step: int, state: TrainState) -> None:
        """Evaluates and saves where due. Both need the step's result, so reports come first."""
        evaluators = [name for name, child in self.trainer.evaluators.items() if child.due(step)]
        saving = self.trainer.checkpointer.due(step)
        if not (evaluators or saving) or not self._drain(0):
            return
        with self.clock.paused():
            for name in evaluators:
                if not self._asked_to_stop():
                    self._evaluate(name, step, state)
            if saving:
                self.trainer.checkpointer.save(step, state)

    def _finish(self, state: TrainState) -> None:
        """Saves the last good state, and evaluates it if the run came to its end."""
        if self._halted is not None:
            self.outcome.step = self._halted.step - 1
        self.trainer.checkpointer.save(self.outcome.step, resumable(state))
        at_the_end = self.outcome.step == self.trainer.steps and self._halted is None
        for name in self.trainer.evaluators if at_the_end else ():
            if not self._asked_to_stop():
                self._evaluate(name, self.outcome.step, state)
        if self._asked_to_stop():
            self.outcome.stopped_by = self.stop.received or "a signal to another process"

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
        result = self.trainer.evaluators[name].evaluate(evaluation)
        figures = {f"{name}/{key}": value for key, value in result.items()}
        self.outcome.figures.update(figures)
        self._write(step, figures)

    def _asked_to_stop(self) -> bool:
        """Says whether a signal came, to this process or another: they stop at the same step."""
        self._stopping = self.vote.cast(self.stop.received is not None) or self._stopping
        return self._stopping

    def _drain(self, keep: int) -> bool:
        """Reads reports until `keep` are left. Says whether all was finite."""
        while len(self.pending) > keep and self._halted is None:
            step, report = self.pending.popleft()
            report = jax.device_get(report)
            if not report.finite:
                self._halted = _Halted(step, report, sorted(parameter_specs(self.trainer.model)))
            else:
                self._log(step, report)
        return self._halted is None

    def _log(self, step: int, report: StepReport) -> None:
        self.clock.tick(step)
        self.outcome.losses.append((step, float(report.loss)))
        if step % self.trainer.log_every == 0 or step == self.trainer.steps:
            figures = report_figures(report) | self.clock.figures(step, self.trainer.steps)
            self.outcome.figures.update(figures)
            self._write(step, figures)

    def _batch(self, step: int) -> Any:
        spec, shardings = self.program.batch_spec, self.program.batch_shardings
        return device_batch(self.trainer.input, step, shardings, spec)

    def _write(self, step: int, figures: Any) -> None:
        self._each_writer(lambda writer: writer.write(step, figures))

    def _each_writer(self, action: Callable[[Any], None]) -> None:
        """Lets each writer do something. A full disk may lose figures, never the training."""
        if jax.process_index() != 0:  # one process tells about the run; the others only compute
            return
        for name, writer in self.trainer.writers.items():
            try:
                action(writer)
            except OSError as error:
                if name not in self._mute_writers:
                    _LOG.warning("The writer %r failed: %s. Training goes on.", name, error)
                self._mute_writers.add(name)


@dataclass(frozen=True)
class _Halted:
    """The step that was not finite."""

    step: int
    report: StepReport
    paths: list[str]

    def message(self, saved: bool) -> str:
        """Says what happened, what is saved, and what to do."""
        index = int(self.report.bad_parameter)
        where = f"the gradient of {self.paths[index]}" if index >= 0 else "the loss"
        batch = self.step - 1
        kept = "The state before it is saved" if saved else "Saving the state before it failed"
        return (
            f"Step {self.step}: {where} is not finite (loss {float(self.report.loss)}, gradient "
            f"norm {float(self.report.gradient_norm)}). {kept}. Go on without its data with "
            f"input.skips=(({batch},{batch + 1}),), start again with a lower learning rate, or "
            "find the operation with --debug-nans."
        )
