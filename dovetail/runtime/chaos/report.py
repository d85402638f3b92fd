"""The results of many trials in a table: one row for each kind of fault, or kind and point."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from dovetail.runtime.chaos.judging import Result
from dovetail.utils import format_table

_COLUMNS = (
    "injected",
    "survived",
    "said something",
    "steps repeated (most)",
    "s to detect",
    "s to the next life",
    "s to its first step",
)
HEADER = ("kind of fault", "points", *_COLUMNS)
POINTS_HEADER = ("kind of fault", "point", "seeds", *_COLUMNS)


def loss_bound(trials: int) -> float:
    """Returns the upper bound (95% confidence) of the fraction of faults that lose a run.

    It holds if no trial lost a run: with a larger fraction, that would have a probability below 5%.
    """
    bound: float = 1 - 0.05 ** (1 / trials)
    return bound


def as_text(results: Sequence[Result], seed: int, *, with_points: bool = False) -> str:
    """Returns what was not survived, and a row for each kind, as `dovetail chaos` prints them.

    Args:
        results: of all trials.
        seed: the seed of the trials.
        with_points: whether to return a row for each kind and point.
    """
    bad = [result for result in results if result.problem is not None or not result.injected]
    lines = [
        f"{each.trial}, seed {each.trial.seed}: {each.problem or 'the fault was not injected'}"
        for each in bad
    ]
    if with_points:
        lines.append(format_table(summary_of_points(results), header=POINTS_HEADER))
    else:
        lines.append(format_table(summary(results), header=HEADER))
    survived = len(results) - len(bad)
    lines.append(f"{survived} of {len(results)} faults survived without loss (seed {seed})")
    if not bad:
        bound = loss_bound(survived)
        lines.append(f"With 95% confidence, fewer than {bound:.1%} of such faults lose a run.")
    return "\n".join(lines)


def summary(results: Sequence[Result]) -> list[list[str]]:
    """Returns a row of `HEADER` for each kind; delays as median and worst."""
    kinds: dict[str, list[Result]] = {}
    for result in results:
        kinds.setdefault(result.trial.kind, []).append(result)
    return [
        [kind, str(len({result.trial.point for result in found})), *_numbers(found)]
        for kind, found in kinds.items()
    ]


def summary_of_points(results: Sequence[Result]) -> list[list[str]]:
    """Returns a row of `POINTS_HEADER` for each kind and point, with the seeds that repeat it."""
    points: dict[tuple[str, str], list[Result]] = {}
    for result in results:
        points.setdefault((result.trial.kind, result.trial.point), []).append(result)
    rows = []
    for (kind, point), found in points.items():
        seeds = [str(result.trial.seed) for result in found]
        listed = ", ".join(seeds[:3]) + (", ..." if seeds[3:] else "")
        rows.append([kind, point, listed, *_numbers(found)])
    return rows


def _numbers(results: Sequence[Result]) -> list[str]:
    """Returns the cells of `_COLUMNS`."""
    injected = [result for result in results if result.injected]
    survived = [result for result in injected if result.problem is None]
    return [
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
