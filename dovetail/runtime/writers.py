"""Writers: where figures go. Each takes (step, figures) and knows nothing of who made them."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any, Protocol

from dovetail.config import Part
from dovetail.hardware import write_whole

Figures = Mapping[str, float | int | str]


class Writer(Protocol):
    """Receives the figures of a run."""

    def open(self, folder: Path, first_step: int) -> None:
        """Begins, or continues after a restore; what was written of later steps is dropped."""
        ...

    def write(self, step: int, figures: Figures) -> None:
        """Takes the figures of a step."""
        ...

    def close(self) -> None:
        """Writes out what is left."""
        ...


class JsonLines(Part):
    """Writes `metrics.jsonl`: one JSON object a line, readable while the run goes on."""

    def open(self, folder: Path, first_step: int) -> None:
        """Cuts the file to the restored step, so that no line stands in it twice."""
        path = folder / "metrics.jsonl"
        kept = _kept(path.read_text(), first_step) if path.exists() else []
        if path.exists():
            write_whole(path, "".join(kept))
        self._written = {_what(json.loads(line)) for line in kept}
        self._file: IO[str] = path.open("a", encoding="utf-8")

    def write(self, step: int, figures: Figures) -> None:
        """Appends a line, unless it is there: a finished run started again evaluates again."""
        entry = {"step": step, **{name: _json_number(value) for name, value in figures.items()}}
        if _what(entry) not in self._written:
            self._file.write(json.dumps(entry) + "\n")
            self._file.flush()

    def close(self) -> None:
        """Closes the file."""
        self._file.close()


class TensorBoard(Part):
    """Writes TensorBoard event files."""

    def open(self, folder: Path, first_step: int) -> None:
        """Makes the event file at the first write, since the library takes a while to load."""
        self._folder, self._first_step = folder, first_step
        self._events: Any = None

    def write(self, step: int, figures: Figures) -> None:
        """Adds scalars and texts."""
        if self._events is None:
            from tensorboardX import SummaryWriter

            self._events = SummaryWriter(
                str(self._folder / "tensorboard"), purge_step=self._first_step + 1
            )
        for name, value in figures.items():
            if isinstance(value, str):
                self._events.add_text(name, value, step)
            else:
                self._events.add_scalar(name, value, step)

    def close(self) -> None:
        """Flushes the events."""
        if self._events is not None:
            self._events.close()


def _kept(text: str, last_step: int) -> list[str]:
    """Returns the whole lines up to a step; a line cut off by a crash is dropped."""
    kept = []
    for line in text.splitlines():
        try:
            entry = json.loads(line)
        except json.JSONDecodeError:
            continue
        if entry.get("step", 0) <= last_step:
            kept.append(line + "\n")
    return kept


def _what(entry: dict[str, Any]) -> tuple[int, frozenset[str]]:
    """Names a line by its step and the figures that it holds."""
    return int(entry["step"]), frozenset(entry)


def _json_number(value: float | int | str) -> float | int | str | None:
    return None if isinstance(value, float) and not math.isfinite(value) else value
