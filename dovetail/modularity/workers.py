"""Work in several processes, with results as they come; the order of the work is kept."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from typing import Any

# Nothing here runs long: what is saved by optimising is less than optimising costs.
_QUICK = "--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true"


def in_processes(
    work: Callable[..., Any], tasks: Sequence[tuple[Any, ...]], jobs: int
) -> Iterator[tuple[tuple[Any, ...], Any]]:
    """Yields (task, result) for each task, as they are done."""
    if not tasks:
        return
    # Fresh processes: JAX cannot be forked once it has started threads.
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(jobs, mp_context=context, initializer=_start) as pool:
        waiting = {pool.submit(work, *task): task for task in tasks}
        try:
            for done in as_completed(waiting):
                yield waiting[done], done.result()
        finally:
            pool.shutdown(cancel_futures=True)


def _start() -> None:
    """Prepares a worker: on the CPU, without optimising, and quiet."""
    os.environ["JAX_PLATFORMS"] = "cpu"
    os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {_QUICK}"
    from dovetail.runtime import use_compilation_cache

    use_compilation_cache()
