"""Metrics as lines of JSON: `metrics.jsonl` in the run folder, which other commands read."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import IO, Any

from dovetail.config import Component
from dovetail.runtime.writers.base import Metrics
from dovetail.utils import atomic_write, read_json_lines


class JsonLines(Component):
    """Writes `metrics.jsonl`: one JSON object a line, readable during the run."""

    def open(self, folder: Path, first_step: int) -> None:
        """Truncates the file to the restored step, so that no line is written twice."""
        path = folder / "metrics.jsonl"
        entries = [entry for entry in read_metrics(path) if entry["step"] <= first_step]
        if path.exists():
            atomic_write(path, "".join(json.dumps(entry) + "\n" for entry in entries))
        self._written = {_line_key(entry) for entry in entries}
        self._file: IO[str] = path.open("a", encoding="utf-8")

    def write(self, step: int, metrics: Metrics) -> None:
        """Appends a line unless the file has it: a restart of a finished run evaluates again."""
        entry = {"step": step, **{name: _json_number(value) for name, value in metrics.items()}}
        if _line_key(entry) not in self._written:
            self._file.write(json.dumps(entry) + "\n")
            self._file.flush()

    def close(self) -> None:
        """Closes the file."""
        self._file.close()


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """Returns the entries of a `metrics.jsonl`; drops damaged and truncated lines."""
    entries = read_json_lines(path)
    return [entry for entry in entries if type(entry.get("step")) is int]


def _line_key(entry: dict[str, Any]) -> tuple[int, frozenset[str]]:
    """Identifies a line by its step and the names of its metrics."""
    return int(entry["step"]), frozenset(entry)


def _json_number(value: float | int | str) -> float | int | str | None:
    return None if isinstance(value, float) and not math.isfinite(value) else value
