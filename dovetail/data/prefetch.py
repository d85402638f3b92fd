"""Prefetching: a thread that makes the next few batches while the device works on this one."""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from types import TracebackType
from typing import Generic, Self, TypeVar

from dovetail.config import ConfigError

T = TypeVar("T")


class Prefetcher(Generic[T]):
    """Gives `make(first)`, `make(first + 1)`, ... in order, made up to `ahead` of them in advance.

    An error in `make` is raised where its item would have been given, after all items before it.
    Use it in a `with` statement, or call `close()`.
    """

    def __init__(
        self, make: Callable[[int], T], first: int = 0, end: int | None = None, ahead: int = 2
    ) -> None:
        """Starts to make items at once; `end` is the number after the last, None for no last."""
        if ahead < 1:
            raise ConfigError(f"Prefetcher.ahead: expected at least 1, got {ahead}.")
        self._make = make
        self._numbers: Iterator[int] = (
            itertools.count(first) if end is None else iter(range(first, end))
        )
        self._closed = False
        self._pending: deque[Future[T]] = deque()
        # One thread: batches come in order, and reading is seldom what a step waits for.
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="dovetail-prefetch")
        for _ in range(ahead):
            self._begin_another()

    def __iter__(self) -> Self:
        """Returns the prefetcher itself."""
        return self

    def __next__(self) -> T:
        """Returns the next item, waiting for it if need be."""
        if self._closed:
            raise RuntimeError("the prefetcher is closed; make a new one to go on.")
        if not self._pending:
            raise StopIteration
        item = self._pending.popleft()
        self._begin_another()
        return item.result()

    def close(self) -> None:
        """Ends the thread once it is done with the item it is making; drops what is ready."""
        self._closed = True
        self._pending.clear()
        self._thread.shutdown(wait=True, cancel_futures=True)

    def __enter__(self) -> Self:
        """Returns the prefetcher itself."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Closes it."""
        self.close()

    def _begin_another(self) -> None:
        for number in itertools.islice(self._numbers, 1):
            self._pending.append(self._thread.submit(self._make, number))
