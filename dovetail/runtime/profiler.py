"""A profiler of a few training steps, with one trace in the run folder."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path

import jax


class Profiler:
    """Traces the chosen steps, as far as the run takes them.

    `Hooks(around_step=profiler.around_step)` gives it to a training loop.
    """

    def __init__(self, folder: Path, steps: range, log: Callable[[str], None]) -> None:
        """Takes the steps; writes nothing yet.

        Args:
            folder: the run folder; the trace goes to `profile` in it.
            steps: the steps to trace, counted from 0.
            log: called with a line when the trace is written.
        """
        self._folder, self._steps, self._log = folder / "profile", steps, log
        self._traced: list[int] = []
        self._tracing = False

    def around_step(self, step: int) -> AbstractContextManager[None] | None:
        """Returns the context of a chosen step, and None for others, which are not blocked on."""
        return self._trace(step) if step in self._steps else None

    def finish(self) -> None:
        """Writes the trace, even if the run ended inside the range."""
        if self._tracing:
            self._stop()
        if not self._traced:
            first, end = self._steps.start, self._steps.stop
            self._log(f"profile {first}:{end}: this run took none of these steps; no profile")

    @contextlib.contextmanager
    def _trace(self, step: int) -> Iterator[None]:
        if not self._tracing:
            jax.profiler.start_trace(str(self._folder))
            self._tracing = True
        self._traced.append(step)
        with jax.profiler.StepTraceAnnotation("train", step_num=step):
            yield
        if step == self._steps[-1]:
            self._stop()

    def _stop(self) -> None:
        self._tracing = False
        jax.profiler.stop_trace()
        first, end = self._traced[0], self._traced[-1] + 1
        self._log(f"profile of steps {first}:{end} in {self._folder}")
