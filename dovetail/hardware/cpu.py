"""The CPU of this machine: its rates are measured at first use and kept in the user's cache folder.

No data sheet says what a share of a virtual machine can do, so the peak that MFU is measured
against is the best rate at which JAX itself multiplies large matrices here.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import os
import platform
import time
from collections.abc import Callable
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

from dovetail.hardware.chip import Chip
from dovetail.hardware.files import user_cache_folder, write_whole

_SIZE = 2048
_BANDWIDTH_BYTES = 2**28
_SECONDS_EACH = 0.35
_CONTAINER_LIMITS = (
    Path("/sys/fs/cgroup/memory.max"),
    Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"),
)
_FIGURES = ("float32", "bfloat16", "memory_bandwidth")


def measured_cpu(cache_folder: Path | None = None) -> Chip:
    """Returns this machine as a chip, from the cache or by measuring it (under two seconds).

    All CPU devices of a process share the machine; `devices_per_chip` says how many they are. What
    was measured on a busy machine is too low: it is measured again next time, and the best is kept.

    Args:
        cache_folder: where measurements are kept; None means `dovetail` in the user's cache folder.
    """
    import jax

    identity = {"cpu": cpu_model(), "cores": cpu_cores(), "jax": version("jax")}
    digest = hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()[:12]
    path = (cache_folder or user_cache_folder()) / f"cpu-{digest}.json"
    figures, is_settled = _read(path, identity)
    if not is_settled:
        is_settled = not _is_busy()
        measured = _measure()
        figures = {name: max(value, figures.get(name, 0)) for name, value in measured.items()}
        _write(path, {**identity, **figures, "is_settled": is_settled})
    return replace(_chip(figures), devices_per_chip=jax.local_device_count("cpu"))


def unmeasured_cpu() -> Chip:
    """Returns this machine as a chip whose rates are not known: it loads no JAX and takes no time.

    Its memory is what a layout is compared with; for rates there is `measured_cpu`.
    """
    return Chip(
        name="cpu",
        kind="cpu",
        device_kinds=("cpu",),
        peak_flops={},
        memory_bytes=float(machine_memory_bytes()),
        memory_bandwidth=0.0,
    )


def cpu_cores() -> int:
    """Returns how many cores this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def cpu_model() -> str:
    """Returns what the CPU calls itself."""
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def machine_memory_bytes() -> int:
    """Returns the memory of this machine, or of the container that the process may not leave."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    for file in _CONTAINER_LIMITS:
        with contextlib.suppress(OSError, ValueError):  # not there, or "max"
            memory = min(memory, int(file.read_text()))
    return memory


def _chip(figures: dict[str, float]) -> Chip:
    return replace(
        unmeasured_cpu(),
        # What XLA has no CPU product for, it widens to float32.
        peak_flops={
            "float32": figures["float32"],
            "bfloat16": figures["bfloat16"],
            "float8": figures["float32"],
            "int8": figures["float32"],
        },
        memory_bandwidth=figures["memory_bandwidth"],
    )


def _measure() -> dict[str, float]:
    import jax
    import jax.numpy as jnp

    figures = {}
    with jax.default_device(jax.local_devices(backend="cpu")[0]):
        multiply = jax.jit(jnp.matmul)
        for precision in ("float32", "bfloat16"):
            matrix = jnp.ones((_SIZE, _SIZE), precision)
            seconds = _best_seconds(functools.partial(multiply, matrix, matrix))
            figures[precision] = 2 * _SIZE**3 / seconds
        # Read and write in place: new memory would measure how fast pages are handed out.
        add = jax.jit(lambda array: array + 1, donate_argnums=0)
        held = [jnp.zeros(_BANDWIDTH_BYTES // 4, jnp.float32)]

        def touch_all() -> Any:
            held[0] = add(held[0])
            return held[0]

        figures["memory_bandwidth"] = 2 * _BANDWIDTH_BYTES / _best_seconds(touch_all)
    return figures


def _best_seconds(run: Callable[[], Any]) -> float:
    """Times a computation until its time is up, at least three times; the first compiles."""
    run().block_until_ready()
    best, until, rounds = float("inf"), time.perf_counter() + _SECONDS_EACH, 0
    while rounds < 3 or time.perf_counter() < until:
        start = time.perf_counter()
        run().block_until_ready()
        best, rounds = min(best, time.perf_counter() - start), rounds + 1
    return best


def _is_busy() -> bool:
    """Returns whether others have kept this machine's cores busy during the last minute."""
    return hasattr(os, "getloadavg") and os.getloadavg()[0] > 0.5 * cpu_cores()


def _read(path: Path, identity: dict[str, Any]) -> tuple[dict[str, float], bool]:
    """Returns the kept figures, if any can be trusted, and whether they are final."""
    try:
        kept = json.loads(path.read_text())
        if any(kept[name] != value for name, value in identity.items()):
            return {}, False
        figures = {name: float(kept[name]) for name in _FIGURES}
        is_settled = kept["is_settled"] is True
    except (OSError, ValueError, KeyError, TypeError):
        return {}, False
    if not all(0 < value < float("inf") for value in figures.values()):
        return {}, False
    return figures, is_settled


def _write(path: Path, contents: dict[str, Any]) -> None:
    # A cache that cannot be written costs two seconds at every start, which is no reason to stop.
    with contextlib.suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, json.dumps(contents, indent=2, sort_keys=True) + "\n")
