"""Stragglers: processes whose host slows every step down.

All processes wait for the slowest in each step, so their step times are equal. Hosts differ in the
time that they work (input, Python, other programs) instead of waiting for results. A run compares
this time whenever it evaluates or saves.
"""

from __future__ import annotations

import contextlib
import socket
import statistics
import time
from collections.abc import Iterator

from dovetail.runtime.agreement import Agreement, AgreementError
from dovetail.utils import format_duration

_SHARE_OF_A_STEP = 0.2
_DEADLINE_SECONDS = 60.0


class Stragglers:
    """Measures the work of this host, and compares it with the other hosts' work."""

    def __init__(self, agreement: Agreement) -> None:
        """Measures nothing before `start`."""
        self._agreement, self._comparisons = agreement, 0
        self.start(0)

    def start(self, step: int) -> None:
        """Starts to measure after a step."""
        self._step, self._since, self._waited = step, time.monotonic(), 0.0

    @contextlib.contextmanager
    def waiting(self) -> Iterator[None]:
        """Excludes a block that waits for devices, and so for other processes."""
        before = time.monotonic()
        try:
            yield
        finally:
            self._waited += time.monotonic() - before

    def compare(self, step: int) -> str | None:
        """Returns a sentence that names the slowest process, if it slows the others down.

        All processes call this after the same step, and get the same result.
        """
        steps = step - self._step
        if self._agreement.count == 1 or steps < 1:
            return None
        elapsed = time.monotonic() - self._since
        about = ((elapsed - self._waited) / steps, elapsed / steps, socket.gethostname())
        self.start(step)
        try:
            # After a rollback a step comes again.
            self._comparisons += 1
            topic = f"work until step {step} ({self._comparisons})"
            found = self._agreement.gather(topic, about, _DEADLINE_SECONDS)
        except AgreementError:
            return None  # whatever needs the missing process reports it
        return slowest([(work, host) for work, _, host in found], max(each[1] for each in found))


def slowest(work: list[tuple[float, str]], step_seconds: float) -> str | None:
    """Names the process whose work per step exceeds the median by much of a step."""
    typical = statistics.median(seconds for seconds, _ in work)
    index = max(range(len(work)), key=lambda i: work[i][0])
    seconds, host = work[index]
    if seconds - typical < _SHARE_OF_A_STEP * step_seconds:
        return None
    return (
        f"Process {index} on {host} slows all down: its host works {format_duration(seconds)} per "
        f"step, where {format_duration(typical)} is typical. Steps take "
        f"{format_duration(step_seconds)}."
    )
