"""The interface of metrics writers, which take (step, metrics)."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

Metrics = Mapping[str, float | int | str]


class MetricsWriter(Protocol):
    """Writes the metrics of a run."""

    def open(self, folder: Path, first_step: int) -> None:
        """Starts, or continues after a restore: drops the metrics after `first_step`."""
        ...

    def write(self, step: int, metrics: Metrics) -> None:
        """Writes the metrics of a step."""
        ...

    def close(self) -> None:
        """Flushes and closes."""
        ...
