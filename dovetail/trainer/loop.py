"""The training loop: load a batch, run the step, log metrics, evaluate, save, stop.

Steps are dispatched asynchronously. Their reports are read up to `max_steps_in_flight` steps late,
so that the devices always have work. If a step is not finite, the learner skips it and all after
it, so the state is still the last good one. What to do about that, or about a spike, is the answer
of the trainer's fault policy.
"""

from __future__ import annotations

import contextlib
import contextvars
import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp

from dovetail.data import HasPreparedData, Prefetcher
from dovetail.kernels import choices
from dovetail.learner import StepReport, TrainState, averaged_parameters, clear_halt
from dovetail.parallel import HostConsensus, max_steps_in_flight, use_placement
from dovetail.runtime import StopRequest, abstract_state, count_cache_hits
from dovetail.trainer.fault_handling import FaultHandler, NonFiniteError
from dovetail.trainer.interfaces import Evaluation
from dovetail.trainer.step_metrics import StepTimer, report_metrics
from dovetail.utils import format_duration

if TYPE_CHECKING:
    from dovetail.trainer.trainer import Trainer

_LOG = logging.getLogger("dovetail")

# Most steps that are in the compilation cache are loaded sooner than this.
_NOTICE_SECONDS = 0.8


@dataclass
class Outcome:
    """How a run ended."""

    step: int
    stopped_by: str | None = None
    saved: bool = True
    losses: list[tuple[int, float]] = field(default_factory=list)
    metrics: dict[str, float | int | str] = field(default_factory=dict)
    seconds: float = 0.0


@dataclass(frozen=True)
class Hooks:
    """Callbacks of a training loop."""

    log: Callable[[str], None] = _LOG.info
    debug_nans: bool = False
    # Called with each step's number. If it returns a context, the step runs inside it.
    around_step: Callable[[int], contextlib.AbstractContextManager[Any] | None] | None = None


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
        self._stopping = False
        self._failed_writers: set[str] = set()

    def run(self) -> Outcome:
        """Trains to the last step, or until a signal."""
        started = time.monotonic()
        self.program = self.trainer.program()
        mesh = self.program.placement.device_mesh
        self.max_in_flight = max_steps_in_flight(mesh)
        self.consensus = HostConsensus(mesh, self.max_in_flight)
        self.trainer.checkpointer.open(self.folder / "checkpoints")
        with self.stop, use_placement(self.program.placement), self.trainer.kernels.in_force():
            self._prepare()
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
                self.outcome.saved = self.trainer.checkpointer.finish()
                self._each_writer(lambda writer: writer.close())
        if self.faults.fault is not None:
            raise self.faults.error(self.outcome.saved)
        self.outcome.seconds = time.monotonic() - started
        return self.outcome

    def _prepare(self) -> None:
        """Prepares the data, without what the run leaves out; logs what is suspicious about it."""
        source = self.trainer.input
        self.faults.skip_recorded()
        if isinstance(source, HasPreparedData):
            source.prepare()
            for warning in source.warnings(self.trainer.steps):
                self.hooks.log(f"warning: {warning}")

    def _initialize_and_compile(self) -> tuple[TrainState, int, Any]:
        """Compiles the step in a thread while the state is initialized or restored."""
        with ThreadPoolExecutor(1, thread_name_prefix="dovetail-compile") as thread:
            compiling = thread.submit(contextvars.copy_context().run, self._compile)
            state, first = self._restore_or_initialize()
            return state, first, compiling.result()

    def _restore_or_initialize(self) -> tuple[TrainState, int]:
        """Restores the newest good checkpoint, or initializes the state."""
        like = abstract_state(self.program.state_shapes, self.program.state_shardings)
        found = self.trainer.checkpointer.restore(like)
        if found is None:
            return self.trainer.initial_state(self.hooks.log), 0
        step, state = found
        self.hooks.log(f"resumed from step {step}")
        return state, step

    def _compile(self) -> Any:
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
        self.outcome.step = first
        with feed:
            for step in range(first, self.trainer.steps):
                if not self._drain(self.max_in_flight) or self._stop_requested():
                    break
                state, report = self._step(step, train_step, state, next(feed))
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
        around = self.hooks.around_step(step) if self.hooks.around_step is not None else None
        if around is None:
            result: tuple[TrainState, StepReport] = train_step(*arguments)
            return result
        with around:
            return jax.block_until_ready(train_step(*arguments))

    def _between_steps(self, step: int, state: TrainState) -> None:
        """Evaluates and saves if due. Both block on the step, so pending reports are read first."""
        evaluators = [name for name, child in self.trainer.evaluators.items() if child.due(step)]
        saving = self.trainer.checkpointer.due(step)
        if not (evaluators or saving) or not self._drain(0):
            return
        with self.timer.paused():
            for name in evaluators:
                if not self._stop_requested():
                    self._evaluate(name, step, state)
            if saving:
                self.trainer.checkpointer.save(step, state)

    def _finish(self, state: TrainState) -> None:
        """Saves the last good state, and evaluates it if the run is complete."""
        if not self.faults.is_state_good():
            return  # the newest checkpoint is the newest good state
        self.outcome.step = self.faults.good_step(self.outcome.step)
        if self.faults.fault is None and (path := _non_finite(state.params)) is not None:
            raise NonFiniteError(
                f"After step {self.outcome.step}, the last one, the parameter {path} is not "
                "finite, so this state is not saved. Restart with a lower learning rate."
            )
        self.trainer.checkpointer.save(self.outcome.step, clear_halt(state))
        is_complete = self.outcome.step == self.trainer.steps and self.faults.fault is None
        for name in self.trainer.evaluators if is_complete else ():
            if not self._stop_requested():
                self._evaluate(name, self.outcome.step, state)
        if self._stop_requested():
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
        metrics = {f"{name}/{key}": value for key, value in result.items()}
        self.outcome.metrics.update(metrics)
        self._write(step, metrics)

    def _stop_requested(self) -> bool:
        """Returns whether any process received a signal, so that all stop at the same step."""
        self._stopping = self.consensus.any_host(self.stop.received is not None) or self._stopping
        return self._stopping

    def _drain(self, max_pending: int) -> bool:
        """Reads reports until `max_pending` remain. Returns whether training may go on."""
        while len(self.pending) > max_pending and self.faults.fault is None:
            step, report = self.pending.popleft()
            report = jax.device_get(report)
            if self.faults.check(step, report):
                self._log(step, report)
        return self.faults.fault is None

    def _roll_back(self, state: TrainState) -> tuple[TrainState, int]:
        """Returns the newest good state and its step, and forgets what came after it."""
        self.pending.clear()
        if self.faults.is_state_good():
            state, first = clear_halt(state), self.faults.good_step(self.outcome.step)
        else:
            self.trainer.checkpointer.finish()
            state, first = self._restore_or_initialize()
        self.hooks.log(f"{self.faults.settle(first)} Rolled back to step {first}.")
        self.outcome.losses = [point for point in self.outcome.losses if point[0] <= first]
        self._each_writer(lambda writer: writer.close())
        self._each_writer(lambda writer: writer.open(self.folder, first))
        return state, first

    def _log(self, step: int, report: StepReport) -> None:
        self.timer.tick(step)
        self.outcome.losses.append((step, float(report.loss)))
        if step % self.trainer.log_every == 0 or step == self.trainer.steps:
            metrics = report_metrics(report) | self.timer.metrics(step, self.trainer.steps)
            self.outcome.metrics.update(metrics)
            self._write(step, metrics)

    def _write(self, step: int, metrics: Any) -> None:
        self._each_writer(lambda writer: writer.write(step, metrics))

    def _each_writer(self, action: Callable[[Any], None]) -> None:
        """Calls each writer. A failure (disk full) loses metrics but does not stop training."""
        if jax.process_index() != 0:  # only one process writes metrics
            return
        for name, writer in self.trainer.writers.items():
            try:
                action(writer)
            except OSError as error:
                if name not in self._failed_writers:
                    _LOG.warning("The writer %r failed: %s. Training continues.", name, error)
                self._failed_writers.add(name)


def compile_step(lowered: Any, log: Callable[[str], None]) -> Any:
    """Compiles a lowered step, or loads it from the compilation cache, and logs which.

    JAX does not say which before it is done, so a notice in between names both.
    """
    started = time.monotonic()
    notice = threading.Timer(_NOTICE_SECONDS, log, ["loading or compiling the step"])
    notice.daemon = True
    notice.start()
    try:
        with count_cache_hits() as hits:
            compiled = lowered.compile()
    finally:
        notice.cancel()
    done = "loaded the step from the cache" if hits() else "compiled the step"
    log(f"{done} in {format_duration(time.monotonic() - started)}")
    return compiled


def _non_finite(params: dict[str, jax.Array]) -> str | None:
    """Returns the path of the first parameter that is not finite; the last update can cause it."""
    # Arrays in another memory space (offloaded to the host) cannot be computed with directly.
    here = {
        path: leaf
        for path, leaf in params.items()
        if leaf.sharding.memory_kind in (None, next(iter(leaf.devices())).default_memory().kind)
    }
    finite = jax.device_get(jax.jit(_all_finite)(here))
    return next((path for path in sorted(finite) if not finite[path]), None)


def _all_finite(params: dict[str, jax.Array]) -> dict[str, jax.Array]:
    return {path: jnp.isfinite(leaf).all() for path, leaf in params.items()}
