"""Compares runs: what differs in their configs, their final metrics, and their loss curves."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from dovetail.config import all_values
from dovetail.run.run import Run

_SHOWN_POINTS = 10
# Metrics of the machine, of which only the last value would be compared.
_IGNORED = ("seconds_left", "steps", "step_memory_gb")
# Metrics of one step each, of which the last says nothing.
_MEDIANS = ("step_seconds",)


@dataclass(frozen=True)
class RunComparison:
    """Several runs side by side.

    Attributes:
        names: the names of the runs, in order.
        differences: by path of the config, the value in each run; None where a run has none.
        metrics: by name, the last value in each run (of step_seconds the median); None where a run
            has none.
        losses: the (step, loss) points of each run.
    """

    names: tuple[str, ...]
    differences: dict[str, tuple[str | None, ...]]
    metrics: dict[str, tuple[float | None, ...]]
    losses: dict[str, list[tuple[int, float]]]

    def losses_at(self) -> list[tuple[int, tuple[float | None, ...]]]:
        """Returns the losses of all runs at a few steps, evenly spaced over the longest run."""
        by_run = [dict(self.losses[name]) for name in self.names]
        steps = sorted({step for points in by_run for step in points})
        stride = max(1, -(-len(steps) // _SHOWN_POINTS))
        shown = sorted({*steps[::stride], *steps[-1:]})
        return [(step, tuple(points.get(step) for points in by_run)) for step in shown]

    def report(self) -> str:
        """Returns it as text, with charts of the loss, as `dovetail compare` prints it."""
        from dovetail.run.comparison_report import comparison_report

        return comparison_report(self)

    def page(self) -> str:
        """Returns it as an HTML page, with the loss curves in one plot."""
        from dovetail.run.comparison_report import comparison_page

        return comparison_page(self)

    def _repr_html_(self) -> str:
        """Shows the page in a notebook."""
        from dovetail.utils.html import frame

        return frame(self.page())


def compare_runs(runs: Sequence[Run]) -> RunComparison:
    """Compares runs; reads no parameters."""
    names = _names(runs)
    values = [all_values(run.config) for run in runs]
    paths = sorted({path for each in values for path in each})
    columns = {path: tuple(each.get(path) for each in values) for path in paths}
    return RunComparison(
        names,
        {path: column for path, column in columns.items() if len(set(column)) > 1},
        _last_metrics([run.metrics() for run in runs]),
        {name: run.losses() for name, run in zip(names, runs, strict=True)},
    )


def _names(runs: Sequence[Run]) -> tuple[str, ...]:
    """Returns the names of the folders, or the paths where names are not unique."""
    short = [run.path.name for run in runs]
    is_unique = len(set(short)) == len(short)
    return tuple(short if is_unique else [str(run.path) for run in runs])


def _is_of_the_machine(name: str) -> bool:
    return name in _IGNORED or name.startswith("badput/")


def _last_metrics(entries: Sequence[list[dict[str, Any]]]) -> dict[str, tuple[float | None, ...]]:
    last: list[dict[str, float]] = []
    for each in entries:
        merged: dict[str, Any] = {}
        for entry in each:
            merged |= entry
        numbers = {k: v for k, v in merged.items() if isinstance(v, int | float)}
        medians = {name: [e[name] for e in each if name in e] for name in _MEDIANS}
        numbers |= {name: median(values) for name, values in medians.items() if values}
        last.append({k: v for k, v in numbers.items() if not _is_of_the_machine(k)})
    names = dict.fromkeys(name for each in last for name in each)
    return {name: tuple(each.get(name) for each in last) for name in names}
