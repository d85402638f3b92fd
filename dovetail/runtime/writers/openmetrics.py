"""The newest metrics of a run as a file for Prometheus.

`dovetail train tiny-lm writers.prometheus=OpenMetrics` writes `metrics.prom` in the run folder. The
textfile collector of Prometheus's node exporter reads all `*.prom` of one folder:
`writers.prometheus.folder=/var/lib/node_exporter` writes `dovetail-<run>.prom` there.
"""

from __future__ import annotations

import math
import re
import time
from pathlib import Path

from dovetail.config import Component
from dovetail.runtime.writers.base import Metrics
from dovetail.utils import atomic_write


class OpenMetrics(Component):
    """Writes the newest value of every metric, in the OpenMetrics text format, as gauges."""

    class Config(Component.Config["OpenMetrics"]):
        """The folder and the interval; a scrape every 15 seconds sees each value once.

        Attributes:
            folder: the folder of the file; None is the run folder.
            seconds_between_writes: the least time between two writes, except at the end.
        """

        folder: str | None = None
        seconds_between_writes: float = 15.0

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self._folder, self._seconds = config.folder, config.seconds_between_writes
        self._values: dict[str, float] = {}

    def open(self, folder: Path, first_step: int) -> None:
        """Takes the folder; the first metrics write the file."""
        name = folder.absolute().name
        self._run = name.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
        self._file = folder / "metrics.prom"
        if self._folder is not None:
            self._file = Path(self._folder) / f"dovetail-{name}.prom"
        self._last_write = -math.inf

    def write(self, step: int, metrics: Metrics) -> None:
        """Takes the numbers; the format has no texts."""
        self._values["step"] = step
        for name, value in metrics.items():
            if not isinstance(value, str):
                self._values[re.sub(r"\W", "_", name, flags=re.ASCII)] = float(value)
        if time.monotonic() - self._last_write >= self._seconds:
            self._replace()

    def close(self) -> None:
        """Writes the last values."""
        if self._values:
            self._replace()

    def _replace(self) -> None:
        self._last_write = time.monotonic()
        lines = []
        for name, value in sorted(self._values.items()):
            lines += [
                f"# TYPE dovetail_{name} gauge",
                f'dovetail_{name}{{run="{self._run}"}} {_number(value)}',
            ]
        atomic_write(self._file, "\n".join([*lines, "# EOF"]) + "\n")


def _number(value: float) -> str:
    if math.isnan(value):
        return "NaN"
    return repr(value) if math.isfinite(value) else f"{'+' if value > 0 else '-'}Inf"
