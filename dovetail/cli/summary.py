"""The end of a run, as a person wants to see it: figures, samples and a small chart."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dovetail.runtime.console import duration, loss_chart

if TYPE_CHECKING:
    from dovetail.trainer import Outcome


def summary(outcome: Outcome, folder: Path, closing: str | None = None) -> str:
    """Returns the closing text of a run; the last line may be given."""
    blocks = [
        loss_chart(_losses(outcome, folder)),
        _texts(outcome),
        _figures(outcome),
        closing or _closing(outcome, folder),
    ]
    return "\n\n".join(block for block in blocks if block)


def recorded(step: int, folder: Path) -> Outcome:
    """Returns the outcome of a run that ended before, as its metrics tell it."""
    from dovetail.trainer import Outcome

    figures: dict[str, float | int | str] = {}
    for entry in _entries(folder):
        figures |= {k: v for k, v in entry.items() if k != "step" and v is not None}
    return Outcome(step, figures=figures)


def _losses(outcome: Outcome, folder: Path) -> list[tuple[int, float]]:
    """Returns the losses of the whole run, also from before it was resumed, where they are kept."""
    kept = [(e["step"], e["loss"]) for e in _entries(folder) if e.get("loss") is not None]
    return kept if len(kept) > len(outcome.losses) else outcome.losses


def _entries(folder: Path) -> list[dict[str, Any]]:
    file = folder / "metrics.jsonl"
    return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []


def _figures(outcome: Outcome) -> str:
    """Lists what the evaluators found, one line each."""
    rows = [
        (name, value)
        for name, value in outcome.figures.items()
        if "/" in name and not isinstance(value, str)
    ]
    width = max((len(name) for name, _ in rows), default=0)
    return "\n".join(f"{name:<{width}}  {value:.4g}" for name, value in rows)


def _texts(outcome: Outcome) -> str:
    texts = [(name, value) for name, value in outcome.figures.items() if isinstance(value, str)]
    return "\n\n".join(f"--- {name}\n{value}" for name, value in texts)


def _closing(outcome: Outcome, folder: Path) -> str:
    spent = duration(outcome.seconds)
    if outcome.stopped_by:
        stopped = f"stopped by {outcome.stopped_by} after step {outcome.step} ({spent})"
        return f"{stopped}; the same command continues"
    return f"done: {outcome.step} steps in {spent}; everything is in {folder}"
