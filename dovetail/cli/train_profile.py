"""`train --profile FIRST:END`: a trace of a few steps, in the run folder."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path

from dovetail.config import ConfigError


def profile_range(text: str | None) -> range | None:
    """Parses FIRST:END."""
    if text is None:
        return None
    first, colon, end = text.partition(":")
    if not (colon and first.isdigit() and end.isdigit() and int(first) < int(end)):
        raise ConfigError(f"--profile: expected FIRST:END, such as 10:13, got {text!r}.")
    return range(int(first), int(end))


def check_range(wanted: range, saved: int, steps: int) -> None:
    """Raises a ConfigError if the run takes none of these steps, before anything is compiled."""
    if wanted.start < steps and wanted.stop > saved:
        return
    left = f"will take the steps {saved}:{steps}" if saved < steps else "has no steps left"
    raise ConfigError(
        f"--profile {wanted.start}:{wanted.stop}: expected steps of this run, which {left}. "
        "Choose others, or more steps with --steps."
    )


class Profiler:
    """Traces those of the chosen steps that a run takes."""

    def __init__(self, folder: Path, steps: range, say: Callable[[str], None]) -> None:
        """Writes nothing yet."""
        self._folder, self._steps, self._say = folder / "profile", steps, say
        self._traced: list[int] = []
        self._tracing = False

    def around_step(self, step: int) -> AbstractContextManager[None] | None:
        """Returns the context of a chosen step, and None for others, which are not blocked on."""
        return self._trace(step) if step in self._steps else None

    def finish(self) -> None:
        """Writes the trace, also if the run ended inside the range."""
        if self._tracing:
            self._stop()
        if not self._traced:
            first, end = self._steps.start, self._steps.stop
            self._say(f"--profile {first}:{end}: this run took none of these steps; no profile.")

    @contextlib.contextmanager
    def _trace(self, step: int) -> Iterator[None]:
        import jax

        if not self._tracing:
            jax.profiler.start_trace(str(self._folder))
            self._tracing = True
        self._traced.append(step)
        with jax.profiler.StepTraceAnnotation("train", step_num=step):
            yield
        if step == self._steps[-1]:
            self._stop()

    def _stop(self) -> None:
        import jax

        self._tracing = False
        jax.profiler.stop_trace()
        first, end = self._traced[0], self._traced[-1] + 1
        self._say(f"profile of steps {first}:{end} in {self._folder}")
