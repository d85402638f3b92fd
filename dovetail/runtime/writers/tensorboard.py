"""Metrics as TensorBoard event files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from dovetail.config import Component
from dovetail.runtime.writers.base import Metrics


class TensorBoard(Component):
    """Writes TensorBoard event files."""

    def open(self, folder: Path, first_step: int) -> None:
        """Makes the event file at the first write, since the library takes a while to load."""
        self._folder, self._first_step = folder, first_step
        self._events: Any = None

    def write(self, step: int, metrics: Metrics) -> None:
        """Adds scalars and texts."""
        if self._events is None:
            from tensorboardX import SummaryWriter

            self._events = SummaryWriter(
                str(self._folder / "tensorboard"), purge_step=self._first_step + 1
            )
        for name, value in metrics.items():
            if isinstance(value, str):
                self._events.add_text(name, value, step)
            else:
                self._events.add_scalar(name, value, step)

    def close(self) -> None:
        """Flushes the events."""
        if self._events is not None:
            self._events.close()
