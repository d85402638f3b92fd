"""Peak memory of a run: of the device if it reports it, else of this process."""

from __future__ import annotations

import re
import resource
import sys
from pathlib import Path

import jax

_CLEAR_REFS = Path("/proc/self/clear_refs")
_STATUS = Path("/proc/self/status")
# The peak before it was last reset.
_peak_before_reset = 0


def peak_memory_bytes() -> int:
    """Returns the peak of the first local device, or of the process if the device has none."""
    stats = jax.local_devices()[0].memory_stats()
    if stats and "peak_bytes_in_use" in stats:
        return int(stats["peak_bytes_in_use"])
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return max(_peak_before_reset, peak if sys.platform == "darwin" else peak * 1024)


class PeakGrowth:
    """The growth of this process's peak memory from now on.

    The peak of a process is mostly its compiler's, so it is reset first, which Linux supports;
    `peak_memory_bytes` still returns the overall peak. An accelerator's peak cannot be reset.
    """

    def __init__(self) -> None:
        """Resets the peak to the current resident size."""
        global _peak_before_reset  # noqa: PLW0603  # the peak is the process's, too
        self._resident: int | None = None
        if jax.local_devices()[0].platform != "cpu":
            return
        try:
            _peak_before_reset = peak_memory_bytes()
            _CLEAR_REFS.write_text("5")
            self._resident = _status("VmRSS")
        except OSError:  # not Linux, or a container that does not allow it
            return

    def bytes(self) -> int | None:
        """Returns the growth so far; None where the system does not report it."""
        return None if self._resident is None else max(0, _status("VmHWM") - self._resident)


def _status(name: str) -> int:
    found = re.search(rf"{name}:\s+(\d+) kB", _STATUS.read_text())
    return int(found[1]) * 1024 if found is not None else 0
