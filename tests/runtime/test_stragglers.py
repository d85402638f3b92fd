"""The process whose host slows the others down is named."""

from __future__ import annotations

import threading
import time
from typing import Any

from dovetail.runtime import Agreement, Stragglers
from dovetail.runtime.stragglers import slowest


class Together(Agreement):
    """Threads that stand for the processes of a run."""

    def __init__(self, index: int, values: list[Any], barrier: threading.Barrier) -> None:
        self.index, self.count = index, len(values)
        self._values, self._barrier = values, barrier

    def gather(self, topic: str, value: Any, seconds: float) -> list[Any]:
        self._values[self.index] = value
        self._barrier.wait()
        found = list(self._values)
        self._barrier.wait()
        return found


def run(seconds: list[float]) -> list[str | None]:
    """Runs ten steps in each process; a step ends when the slowest has done its work."""
    values: list[Any] = [None] * len(seconds)
    barrier, said = threading.Barrier(len(seconds)), list(values)

    def process(index: int) -> None:
        stragglers = Stragglers(Together(index, values, barrier))
        stragglers.start(0)
        for _ in range(10):
            time.sleep(seconds[index])
            with stragglers.waiting():
                barrier.wait()
        said[index] = stragglers.compare(10)

    threads = [threading.Thread(target=process, args=(index,)) for index in range(len(seconds))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return said


def test_the_slow_one_is_named_by_all() -> None:
    said = run([0.0, 0.0, 0.1])
    assert said[0] is not None
    assert said[0].startswith("Process 2 on ")
    assert said == [said[0]] * 3


def test_equal_ones_are_not_blamed() -> None:
    assert slowest([(0.10, "a"), (0.11, "b"), (0.12, "c")], step_seconds=1.0) is None


def test_much_work_that_hides_behind_the_device_is_not_blamed() -> None:
    """A host that works 0.1 s while steps take 2 s slows nobody down."""
    assert slowest([(0.01, "a"), (0.01, "b"), (0.10, "c")], step_seconds=2.0) is None
    assert slowest([(0.01, "a"), (0.01, "b"), (0.50, "c")], step_seconds=2.0) is not None


def test_one_process_has_nobody_to_compare_with() -> None:
    stragglers = Stragglers(Agreement())
    stragglers.start(0)
    assert stragglers.compare(5) is None
