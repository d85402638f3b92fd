"""How much memory a run uses: the device's own count, or this process's on a CPU."""

from __future__ import annotations

import resource
import sys
from pathlib import Path

import jax


def peak_memory_bytes() -> int:
    """Returns the peak on the first local device, or of the process where it has no count."""
    stats = jax.local_devices()[0].memory_stats()
    if stats and "peak_bytes_in_use" in stats:
        return int(stats["peak_bytes_in_use"])
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def free_disk_bytes(folder: Path) -> int:
    """Returns the room that is left where a folder is or will be."""
    import shutil

    while not folder.exists():
        folder = folder.parent
    return shutil.disk_usage(folder).free
