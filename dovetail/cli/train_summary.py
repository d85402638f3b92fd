"""The summary at the end of a run: loss chart, samples and metrics."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dovetail.runtime.console import loss_chart
from dovetail.utils import format_duration, format_table, plural

if TYPE_CHECKING:
    from dovetail.trainer import Outcome


def summary(outcome: Outcome, folder: Path, closing: str | None = None) -> str:
    """Returns the summary of a run; `closing` replaces its last line."""
    blocks = [
        loss_chart(_losses(outcome, folder)),
        _texts(outcome),
        _metrics(outcome),
        closing or _closing(outcome, folder),
    ]
    return "\n\n".join(block for block in blocks if block)


def recorded(step: int, folder: Path) -> Outcome:
    """Returns the outcome of an earlier run from its recorded metrics."""
    from dovetail.trainer import Outcome

    metrics: dict[str, float | int | str] = {}
    for entry in _entries(folder):
        metrics |= {k: v for k, v in entry.items() if k != "step" and v is not None}
    return Outcome(step, metrics=metrics)


def _losses(outcome: Outcome, folder: Path) -> list[tuple[int, float]]:
    """Returns all losses of the run, including those from before it was resumed."""
    losses = [(e["step"], e["loss"]) for e in _entries(folder) if e.get("loss") is not None]
    return losses if len(losses) > len(outcome.losses) else outcome.losses


def _entries(folder: Path) -> list[dict[str, Any]]:
    file = folder / "metrics.jsonl"
    return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []


def _metrics(outcome: Outcome) -> str:
    """Returns the metrics of the evaluators, one line each."""
    rows = [
        (name, value)
        for name, value in outcome.metrics.items()
        if "/" in name and not isinstance(value, str)
    ]
    return format_table([(name, f"{value:.4g}") for name, value in rows])


def _texts(outcome: Outcome) -> str:
    texts = [(name, value) for name, value in outcome.metrics.items() if isinstance(value, str)]
    return "\n\n".join(f"--- {name}\n{value}" for name, value in texts)


def _closing(outcome: Outcome, folder: Path) -> str:
    spent = format_duration(outcome.seconds)
    if outcome.stopped_by:
        stopped = f"stopped by {outcome.stopped_by} after step {outcome.step} ({spent})"
        return f"{stopped}; the same command continues"
    return f"done: {plural(outcome.step, 'step')} in {spent}; everything is in {folder}"
