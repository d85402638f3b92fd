"""The results of many trials in a table: one row for each kind of fault."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from dovetail.runtime.chaos.judging import Result

HEADER = (
    "kind of fault",
    "points",
    "injected",
    "survived",
    "said something",
    "steps repeated (most)",
    "s to detect",
    "s to the next life",
    "s to its first step",
)


def loss_bound(trials: int) -> float:
    """Returns the upper bound (95% confidence) of the fraction of faults that lose a run.

    It holds if no trial lost one: with a larger fraction, that has a probability below 5%.
    """
    bound: float = 1 - 0.05 ** (1 / trials)
    return bound


def summary(results: Sequence[Result]) -> list[list[str]]:
    """Returns a row of `HEADER` for each kind; delays as median and worst."""
    kinds: dict[str, list[Result]] = {}
    for result in results:
        kinds.setdefault(result.trial.kind, []).append(result)
    return [_row(kind, found) for kind, found in kinds.items()]


def _row(kind: str, results: Sequence[Result]) -> list[str]:
    injected = [result for result in results if result.injected]
    survived = [result for result in injected if result.problem is None]
    return [
        kind,
        str(len({result.trial.point for result in results})),
        f"{len(injected)} of {len(results)}",
        f"{len(survived)} of {len(injected)}",
        str(sum(bool(result.noticed) for result in injected)),
        str(max((result.repeated for result in injected), default=0)),
        _spread([result.delays.detect for result in injected]),
        _spread([result.delays.restart for result in injected]),
        _spread([result.delays.first_step for result in injected]),
    ]


def _spread(values: Sequence[float | None]) -> str:
    """Returns the median and the worst of the known values."""
    known = [value for value in values if value is not None]
    return f"{statistics.median(known):.1f}, {max(known):.1f}" if known else ""
