"""This host and process: cores, memory, XLA compilers, and the index of the process in a job."""

from __future__ import annotations

import contextlib
import os
import platform
import time
from importlib.util import find_spec
from pathlib import Path

_CGROUP_LIMITS = (
    Path("/sys/fs/cgroup/memory.max"),
    Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"),
)
# Of Dovetail, Slurm and MPI.
_PROCESS_INDEX_VARIABLES = ("DOVETAIL_PROCESS", "SLURM_PROCID", "OMPI_COMM_WORLD_RANK")
_COMPILER_MODULES = {
    "tpu": ("libtpu",),
    "gpu": ("jax_cuda13_plugin", "jax_cuda12_plugin"),
}


def cpu_cores() -> int:
    """Returns how many cores this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def cpu_model() -> str:
    """Returns the model name that the CPU reports."""
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def host_memory_bytes() -> int:
    """Returns the memory of this host, or the limit of the container that the process runs in."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    for file in _CGROUP_LIMITS:
        with contextlib.suppress(OSError, ValueError):  # missing, or "max"
            memory = min(memory, int(file.read_text()))
    return memory


def can_compile_for(platform: str) -> bool:
    """Returns whether the compiler for `tpu` or `gpu` is installed, without loading it."""
    return any(find_spec(module) is not None for module in _COMPILER_MODULES[platform])


def launched_index() -> int:
    """Returns the index of this process in its job as the environment gives it, without JAX.

    It decides who shows progress while JAX is loaded. On a TPU pod only JAX knows: 0 until then.
    """
    texts = (os.environ.get(name, "") for name in _PROCESS_INDEX_VARIABLES)
    return next((int(text) for text in texts if text.isdecimal()), 0)


def process_started() -> float:
    """Returns when this process was started, on the monotonic clock; now where none tells."""
    now = time.monotonic()
    with contextlib.suppress(OSError, ValueError, AttributeError):  # Linux tells
        # The name of the program, which may contain spaces, ends with the last parenthesis.
        fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
        ticks = int(fields[19])  # field 22: since boot
        age = time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK")
        return now - max(0.0, age)
    return now
