"""The results of many trials: in a file, and in a table with one row for each kind of fault."""

from __future__ import annotations

import dataclasses
import json
import statistics
from collections.abc import Sequence
from pathlib import Path

from dovetail.config import ConfigError
from dovetail.runtime.chaos.judging import Delays, Result
from dovetail.runtime.chaos.trials import Trial

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


def read_results(file: Path) -> list[Result]:
    """Returns the results in a file that `append_result` wrote; none if there is no file."""
    if not file.exists():
        return []
    results = []
    for number, line in enumerate(file.read_text(encoding="utf-8").splitlines(), 1):
        try:
            values = json.loads(line)
            values |= {"trial": Trial(**values["trial"]), "delays": Delays(**values["delays"])}
            results.append(Result(**values))
        except (ValueError, TypeError, KeyError) as error:
            raise ConfigError(
                f"{file}: line {number} is not a result of `dovetail chaos` ({error}). Remove the "
                "line, or name another file."
            ) from error
    return results


def append_result(file: Path, result: Result) -> None:
    """Adds a result to a file, so that an interrupted series of trials can go on."""
    with file.open("a", encoding="utf-8") as lines:
        lines.write(json.dumps(dataclasses.asdict(result)) + "\n")


def loss_bound(trials: int) -> float:
    """Returns which fraction of faults loses a run at most, if none of these trials did.

    With 95% confidence: were it more, `trials` survived faults would be less likely than 5%.
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
