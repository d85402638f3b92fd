"""The summary at the end of a run: loss chart, samples and metrics."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

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


def _losses(outcome: Outcome, folder: Path) -> list[tuple[int, float]]:
    """Returns the recorded losses of the run; those of the outcome if nothing records them."""
    from dovetail.run import Run

    return max(outcome.losses, Run(folder).losses(), key=len)


def _metrics(outcome: Outcome) -> str:
    """Returns the texts and numbers of the evaluators."""
    return format_metrics({k: v for k, v in outcome.metrics.items() if _is_shown(k, v)})


def _is_shown(name: str, value: object) -> bool:
    """Says whether an evaluator found it; the line about goodput has the rest in seconds."""
    return isinstance(value, str) or ("/" in name and not name.startswith("badput/"))


def _goodput(folder: Path) -> str:
    from dovetail.runtime.goodput import goodput

    try:
        return goodput(folder).summary()
    except RunError:  # a training loop of one's own has no log
        return ""


def _closing(outcome: Outcome, folder: Path) -> str:
    spent = format_duration(outcome.seconds)
    if outcome.stopped_by:
        stopped = f"stopped by {outcome.stopped_by} after step {outcome.step} ({spent})"
        return f"{stopped}; the same command continues"
    return f"done: {plural(outcome.step, 'step')} in {spent}; everything is in {folder}"
