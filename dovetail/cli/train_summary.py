"""The summary at the end of a run: loss chart, samples and metrics."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from dovetail.cli.output import format_metrics
from dovetail.config import RunError
from dovetail.runtime.console import loss_chart
from dovetail.utils import format_duration, plural

if TYPE_CHECKING:
    from dovetail.trainer import Outcome


def summary(outcome: Outcome, folder: Path, closing: str | None = None) -> str:
    """Returns the summary of a run; `closing` replaces its last line."""
    blocks = [
        loss_chart(_losses(outcome, folder)),
        _metrics(outcome),
        _goodput(folder),
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
    from dovetail.run import Run

    return Run(folder).metrics()


def _metrics(outcome: Outcome) -> str:
    """Returns the texts and numbers of the evaluators."""
    metrics = outcome.metrics.items()
    return format_metrics({k: v for k, v in metrics if "/" in k or isinstance(v, str)})


def _goodput(folder: Path) -> str:
    from dovetail.cli.goodput_report import goodput_line
    from dovetail.runtime.goodput import goodput

    try:
        return goodput_line(goodput(folder))
    except RunError:  # a training loop of one's own has no log
        return ""


def _closing(outcome: Outcome, folder: Path) -> str:
    spent = format_duration(outcome.seconds)
    if outcome.stopped_by:
        stopped = f"stopped by {outcome.stopped_by} after step {outcome.step} ({spent})"
        return f"{stopped}; the same command continues"
    return f"done: {plural(outcome.step, 'step')} in {spent}; everything is in {folder}"
