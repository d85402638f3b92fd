"""Work in several processes, with results as they come; the order of the work is kept."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from typing import Any

from dovetail.modularity.store import Store

# Is told the stage, and how many of how many tasks are done.
Told = Callable[[str, int, int], None]

# Nothing here runs long: what is saved by optimising is less than optimising costs.
_QUICK = "--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true"
_QUICK_UNTIL_0_11 = " --xla_cpu_use_fusion_emitters=false"  # an unknown flag ends the process


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


def remembered(
    stage: str,
    work: Callable[..., Any],
    tasks: Sequence[tuple[Any, ...]],
    jobs: int,
    store: Store,
    tell: Told,
) -> dict[tuple[Any, ...], Any]:
    """Returns what came of each task: from the store where it is known, else by doing it."""
    keys = {task: " ".join(map(str, (stage, *task))) for task in tasks}
    found = {task: store.get(key) for task, key in keys.items()}
    missing = [task for task, result in found.items() if result is None]
    tell(stage, len(found) - len(missing), len(found))
    for number, (task, result) in enumerate(in_processes(work, missing, jobs), start=1):
        found[task] = result
        store.put_all({keys[task]: result})
        tell(stage, len(found) - len(missing) + number, len(found))
    return found


def _start() -> None:
    """Prepares a worker: on the CPU, without optimising, and quiet."""
    os.environ["JAX_PLATFORMS"] = "cpu"
    import jax

    quick = _QUICK + (_QUICK_UNTIL_0_11 if jax.__version_info__ < (0, 11) else "")
    os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {quick}"
    from dovetail.runtime import use_compilation_cache

    use_compilation_cache()
