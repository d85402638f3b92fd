"""How much memory a run uses: the device's own count, or this process's on a CPU."""

from __future__ import annotations

import re
import resource
import sys
from pathlib import Path

import jax

_CLEAR = Path("/proc/self/clear_refs")
_STATUS = Path("/proc/self/status")
# What the process held when its peak was last set back.
_before = 0


def peak_memory_bytes() -> int:
    """Returns the peak on the first local device, or of the process where it has no count."""
    stats = jax.local_devices()[0].memory_stats()
    if stats and "peak_bytes_in_use" in stats:
        return int(stats["peak_bytes_in_use"])
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return max(_before, peak if sys.platform == "darwin" else peak * 1024)


class PeakGrowth:
    """By how much the peak of this process rises from now on.

    A process's peak is mostly what its compiler took, so it is set back first, which Linux can do;
    `peak_memory_bytes` remembers. Of an accelerator the peak cannot be set back.
    """

    def __init__(self) -> None:
        """Sets the peak back to what is held now."""
        global _before  # noqa: PLW0603  # the peak belongs to the process, too
        self._held: int | None = None
        if jax.local_devices()[0].platform != "cpu":
            return
        try:
            _before = peak_memory_bytes()
            _CLEAR.write_text("5")
            self._held = _status("VmRSS")
        except OSError:  # not Linux, or a container that does not allow it
            return

    def bytes(self) -> int | None:
        """Returns the growth so far; None where it cannot be known."""
        return None if self._held is None else max(0, _status("VmHWM") - self._held)


def _status(name: str) -> int:
    found = re.search(rf"{name}:\s+(\d+) kB", _STATUS.read_text())
    return int(found[1]) * 1024 if found is not None else 0


def free_disk_bytes(folder: Path) -> int:
    """Returns the room that is left where a folder is or will be."""
    import shutil

    while not folder.exists():
        folder = folder.parent
    return shutil.disk_usage(folder).free
