"""The interface of metrics writers: each takes (step, metrics), wherever they come from."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

Metrics = Mapping[str, float | int | str]


class MetricsWriter(Protocol):
    """Writes the metrics of a run."""

    def open(self, folder: Path, first_step: int) -> None:
        """Begins, or continues after a restore: drops what was written after `first_step`."""
        ...

    def write(self, step: int, metrics: Metrics) -> None:
        """Writes the metrics of a step."""
        ...

    def close(self) -> None:
        """Flushes and closes."""
        ...
