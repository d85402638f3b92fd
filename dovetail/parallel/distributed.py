"""Multi-process JAX: joins the processes of a job."""

from __future__ import annotations

import contextlib
import logging
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass

import jax

from dovetail.config import ConfigError
from dovetail.utils import skip_exit_handlers

# Set by Slurm and MPI; `jax.distributed.initialize()` reads the rest.
_CLUSTER_VARIABLES = ("SLURM_STEP_NUM_TASKS", "OMPI_COMM_WORLD_SIZE")
_LOG = logging.getLogger("dovetail")
_LAST_WORDS_SECONDS = 1.0
_ADDRESS = re.compile(r"\S+:\d+")


@dataclass(frozen=True)
class Processes:
    """The index of this process, and the number of processes."""

    index: int
    count: int


def start_distributed() -> Processes:
    """Calls `jax.distributed.initialize()` if the environment describes several processes.

    DOVETAIL_COORDINATOR is the host:port of process 0, DOVETAIL_PROCESSES the number of processes,
    and DOVETAIL_PROCESS the index of this one. Slurm and MPI need none of them. On TPU pods,
    DOVETAIL_COORDINATOR=auto leaves it to JAX. Call this before anything uses a device.
    """
    if not jax.distributed.is_initialized():
        coordinator = os.environ.get("DOVETAIL_COORDINATOR", "")
        if coordinator not in ("", "auto"):
            _start(*_settings(coordinator))
        elif coordinator == "auto" or _in_cluster():
            _start()
    return Processes(jax.process_index(), jax.process_count())


def leave_distributed() -> None:
    """Waits until all processes call this, so that none dies because another one has left.

    Otherwise the first process to exit shuts down JAX's coordination service, or its client. A
    process cannot join again, so call this only before the exit.
    """
    if jax.distributed.is_initialized():
        try:
            jax.distributed.shutdown()
        except RuntimeError as error:  # a process is gone already
            _LOG.warning("Not all processes left together: %s", str(error).splitlines()[0])


@contextlib.contextmanager
def leave_alone_on_error() -> Iterator[None]:
    """Makes a process that fails in this block exit without its peers.

    At exit JAX waits five minutes for all processes to come. If one has failed, the others wait for
    it in a collective of the next step, and a supervisor sees nothing wrong with any of them.
    """
    try:
        yield
    except Exception:
        if jax.distributed.is_initialized():
            # Process 0 has the coordination service: when it ends, the others are aborted. They may
            # have a message to print.
            skip_exit_handlers(_LAST_WORDS_SECONDS if jax.process_index() == 0 else 0.0)
        raise


def _start(address: str | None = None, count: int | None = None, index: int | None = None) -> None:
    # Only the CPU backend reads this; other platforms have their own collectives.
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    jax.distributed.initialize(address, num_processes=count, process_id=index)


def _settings(coordinator: str) -> tuple[str, int, int]:
    """Returns address, number of processes and process index from the environment."""
    if not _ADDRESS.fullmatch(coordinator):
        raise ConfigError(
            "DOVETAIL_COORDINATOR: expected the host:port of process 0, or 'auto', "
            f"got {coordinator!r}."
        )
    count, index = _number("DOVETAIL_PROCESSES"), _number("DOVETAIL_PROCESS")
    if index >= count:
        raise ConfigError(
            f"DOVETAIL_PROCESS: expected less than DOVETAIL_PROCESSES ({count}), got {index}. "
            "Processes count from 0."
        )
    return coordinator, count, index


def _number(name: str) -> int:
    text = os.environ.get(name, "")
    if not re.fullmatch("[0-9]+", text):
        raise ConfigError(
            f"{name}: expected a number, got {text!r}. With DOVETAIL_COORDINATOR set, every "
            "process needs DOVETAIL_PROCESSES (how many) and DOVETAIL_PROCESS (which, from 0)."
        )
    return int(text)


def _in_cluster() -> bool:
    return any(os.environ.get(name, "1") not in ("", "1") for name in _CLUSTER_VARIABLES)
