"""The peak rates of this CPU, measured at first use and cached in the user's cache folder.

No data sheet covers a share of a virtual machine. So the peak of MFU is the best rate at which JAX
multiplies large matrices here.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import os
import time
from collections.abc import Callable
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

from dovetail.hardware import Chip, cpu_chip
from dovetail.utils import (
    atomic_write,
    cpu_cores,
    cpu_model,
    host_memory_bytes,
    user_cache_folder,
)

_MATMUL_SIZE = 2048
_BANDWIDTH_BYTES = 2**28
_SECONDS_EACH = 0.35
_RATES = ("float32", "bfloat16", "memory_bandwidth")


def measured_cpu(cache_folder: Path | None = None) -> Chip:
    """Returns this CPU with its rates, from the cache or by measuring it in under two seconds.

    All CPU devices of a process share the chip; `devices_per_chip` is their number. A busy host
    measures too low, so it is measured again next time and the best rates win.

    Args:
        cache_folder: where measurements are cached; None means Dovetail's user cache folder.
    """
    import jax

    identity = {"cpu": cpu_model(), "cores": cpu_cores(), "jax": version("jax")}
    digest = hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()[:12]
    path = (cache_folder or user_cache_folder()) / f"cpu-{digest}.json"
    rates, is_settled = _read(path, identity)
    if not is_settled:
        is_settled = not _is_busy()
        measured = _measure()
        rates = {name: max(value, rates.get(name, 0)) for name, value in measured.items()}
        _write(path, {**identity, **rates, "is_settled": is_settled})
    return replace(
        cpu_chip(float(host_memory_bytes())),
        # XLA widens to float32 what it has no CPU matmul for.
        peak_flops={
            "float32": rates["float32"],
            "bfloat16": rates["bfloat16"],
            "float8": rates["float32"],
            "int8": rates["float32"],
        },
        memory_bandwidth=rates["memory_bandwidth"],
        devices_per_chip=jax.local_device_count("cpu"),
    )


def _measure() -> dict[str, float]:
    import jax
    import jax.numpy as jnp

    rates = {}
    with jax.default_device(jax.local_devices(backend="cpu")[0]):
        matmul = jax.jit(jnp.matmul)
        for precision in ("float32", "bfloat16"):
            matrix = jnp.ones((_MATMUL_SIZE, _MATMUL_SIZE), precision)
            seconds = _best_seconds(functools.partial(matmul, matrix, matrix))
            rates[precision] = 2 * _MATMUL_SIZE**3 / seconds
        # Read and write in place: fresh memory would measure the page allocator.
        add = jax.jit(lambda array: array + 1, donate_argnums=0)
        held = [jnp.zeros(_BANDWIDTH_BYTES // 4, jnp.float32)]

        def touch_all() -> Any:
            held[0] = add(held[0])
            return held[0]

        rates["memory_bandwidth"] = 2 * _BANDWIDTH_BYTES / _best_seconds(touch_all)
    return rates


def _best_seconds(run: Callable[[], Any]) -> float:
    """Times a computation at least three times, after a first run that compiles it."""
    run().block_until_ready()
    best, until, rounds = float("inf"), time.perf_counter() + _SECONDS_EACH, 0
    while rounds < 3 or time.perf_counter() < until:
        start = time.perf_counter()
        run().block_until_ready()
        best, rounds = min(best, time.perf_counter() - start), rounds + 1
    return best


def _is_busy() -> bool:
    """Returns whether other processes used the cores during the last minute."""
    return hasattr(os, "getloadavg") and os.getloadavg()[0] > 0.5 * cpu_cores()


def _read(path: Path, identity: dict[str, Any]) -> tuple[dict[str, float], bool]:
    """Returns the cached rates if they can be trusted, and whether they are final."""
    try:
        cached = json.loads(path.read_text())
        if any(cached[name] != value for name, value in identity.items()):
            return {}, False
        rates = {name: float(cached[name]) for name in _RATES}
        is_settled = cached["is_settled"] is True
    except (OSError, ValueError, KeyError, TypeError):
        return {}, False
    if not all(0 < value < float("inf") for value in rates.values()):
        return {}, False
    return rates, is_settled


def _write(path: Path, contents: dict[str, Any]) -> None:
    # A read-only cache folder costs two seconds at every start, which is no reason to fail.
    with contextlib.suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        atomic_write(path, json.dumps(contents, indent=2, sort_keys=True) + "\n")
