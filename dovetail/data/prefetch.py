"""Prefetching: a thread makes the next batches while the device runs the current step."""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Generic, Self, TypeVar

from dovetail.config import ConfigError

T = TypeVar("T")


class Prefetcher(Generic[T]):
    """Iterates over `make(first)`, `make(first + 1)`, ..., made up to `ahead` items in advance.

    An error in `make` is raised in place of its item, after all earlier items. Use it in a `with`
    statement, or call `close()`.
    """

    def __init__(
        self, make: Callable[[int], T], first: int = 0, end: int | None = None, ahead: int = 2
    ) -> None:
        """Starts the thread; `end` is one past the last number, None for no end."""
        if ahead < 1:
            raise ConfigError(f"Prefetcher.ahead: expected at least 1, got {ahead}.")
        self._make = make
        self._numbers: Iterator[int] = (
            itertools.count(first) if end is None else iter(range(first, end))
        )
        self._closed = False
        self._pending: deque[Future[T]] = deque()
        # One thread keeps the order, and a step seldom waits for its batch.
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="dovetail-prefetch")
        for _ in range(ahead):
            self._submit_next()

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> T:
        """Returns the next item; blocks until it is made."""
        if self._closed:
            raise RuntimeError("the prefetcher is closed; make a new one.")
        if not self._pending:
            raise StopIteration
        item = self._pending.popleft()
        self._submit_next()
        return item.result()

    def close(self) -> None:
        """Stops the thread after its current item, and drops the items that are ready."""
        self._closed = True
        self._pending.clear()
        self._thread.shutdown(wait=True, cancel_futures=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _submit_next(self) -> None:
        for number in itertools.islice(self._numbers, 1):
            self._pending.append(self._thread.submit(self._make, number))
