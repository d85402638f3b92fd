"""Starting JAX on several processes."""

from __future__ import annotations

import os
from dataclasses import dataclass

import jax

from dovetail.config import ConfigError

# What clusters set for each process, and what `jax.distributed.initialize()` finds out by itself.
_CLUSTER_VARIABLES = ("SLURM_STEP_NUM_TASKS", "OMPI_COMM_WORLD_SIZE")


@dataclass(frozen=True)
class Processes:
    """Which process this is, and of how many."""

    index: int
    count: int


def start_distributed() -> Processes:
    """Joins the other processes of this job, where the environment says that there are any.

    The variables are DOVETAIL_COORDINATOR (host:port of process 0), DOVETAIL_PROCESSES and DOVETAIL_PROCESS.
    Under Slurm, MPI or on a TPU pod, JAX finds them out by itself. Call before anything uses a device.
    """
    if jax.distributed.is_initialized():
        return Processes(jax.process_index(), jax.process_count())
    coordinator = os.environ.get("DOVETAIL_COORDINATOR")
    if coordinator:
        _use_cpu_collectives()
        jax.distributed.initialize(
            coordinator,
            num_processes=_number("DOVETAIL_PROCESSES"),
            process_id=_number("DOVETAIL_PROCESS"),
        )
    elif any(int(os.environ.get(name, "1")) > 1 for name in _CLUSTER_VARIABLES):
        _use_cpu_collectives()
        jax.distributed.initialize()
    return Processes(jax.process_index(), jax.process_count())


def _use_cpu_collectives() -> None:
    # Only the CPU backend reads this; other platforms bring their own collectives.
    jax.config.update("jax_cpu_collectives_implementation", "gloo")


def _number(name: str) -> int:
    text = os.environ.get(name, "")
    if not text.isdigit():
        raise ConfigError(
            f"{name}: expected a number, got {text!r}. With DOVETAIL_COORDINATOR set, every process needs "
            "DOVETAIL_PROCESSES (how many) and DOVETAIL_PROCESS (which, from 0)."
        )
    return int(text)
