"""This host: its cores, its memory, and the XLA compilers that are installed."""

from __future__ import annotations

import contextlib
import os
import platform
from importlib.util import find_spec
from pathlib import Path

_CGROUP_LIMITS = (
    Path("/sys/fs/cgroup/memory.max"),
    Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"),
)
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
