"""The whole survey: the matrix of pairs, and what taking each feature away comes to."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from dovetail.config import to_text
from dovetail.experiments import experiments
from dovetail.features import features
from dovetail.modularity.deletion import Deletion, as_json, probe, without_all_unused
from dovetail.modularity.deletion import without_feature as _without_feature
from dovetail.modularity.leaks import Line
from dovetail.modularity.matrix import Matrix, forms, measure
from dovetail.modularity.own_files import own_files, texts_without
from dovetail.modularity.probe import is_hash, wholes
from dovetail.modularity.store import PACKAGE, Store
from dovetail.modularity.workers import Told, remembered


@dataclass(frozen=True)
class Survey:
    """What was found.

    Attributes:
        matrix: every experiment with every feature.
        deletions: what taking each feature away comes to, by feature.
        alone: the tiny forms that compute otherwise when all they do not use is taken away.
    """

    matrix: Matrix
    deletions: dict[str, Deletion]
    alone: dict[str, str]

    @property
    def lines_changed(self) -> int:
        """Lines in other files that adding the features would have to change, all together."""
        return sum(found.count for found in self.deletions.values()) + len(self.alone)

    def counts(self) -> dict[str, int]:
        """Returns the figures that `--json` prints."""
        return {**self.matrix.counts(), "lines_changed": self.lines_changed}

    def as_json(self) -> dict[str, Any]:
        """Returns the figures and all that stands behind them."""
        pairs = (self.matrix.built, self.matrix.traced, self.matrix.executed)
        return {
            **self.counts(),
            "failures": [pair.as_json() for pair in self.matrix.failing],
            "deletions": [as_json(found) for found in self.deletions.values()],
            "alone": self.alone,
            "matrix": [pair.as_json() for stage in pairs for pair in stage.values()],
        }


def survey(
    only_experiments: Sequence[str] = (),
    only_features: Sequence[str] = (),
    *,
    jobs: int = 2,
    tell: Told = lambda stage, done, total: None,
) -> Survey:
    """Measures; what is known for these sources is taken from the cache."""
    matrix = measure(only_experiments, only_features, jobs=jobs, tell=tell)
    store = Store("deletions")
    deletions = _deletions(matrix.features, jobs, store, tell)
    return Survey(matrix, deletions, _alone(matrix.experiments, jobs, store, tell))


def without_feature(name: str) -> dict[str, Any]:
    """Takes one feature away: the work of one process."""
    known = features()
    files = own_files(known[name], known)
    return as_json(_without_feature(name, files, texts_without(files), before=_wholes()))


@functools.cache
def _wholes() -> dict[str, str]:
    return wholes(*experiments())


def alone(experiment: str) -> str:
    """Compares a tiny form with itself where all that it does not use is gone."""
    known = features()
    files = {name: own_files(feature, known) for name, feature in known.items()}
    after = without_all_unused(experiment, to_text(experiments()[experiment].tiny()), files)
    before = probe(PACKAGE.parent, "programs", experiment).found[experiment]
    if not is_hash(before):
        return f"cannot be traced: {before}"
    return "" if before == after else f"computes otherwise: {after}"


def _deletions(names: Sequence[str], jobs: int, store: Store, tell: Told) -> dict[str, Deletion]:
    tasks = [(name,) for name in names]
    found = remembered("taken away", without_feature, tasks, jobs, store, tell)
    return {name: _read(result) for (name,), result in found.items()}


def _alone(names: Sequence[str], jobs: int, store: Store, tell: Told) -> dict[str, str]:
    tasks = [(name,) for name in sorted(forms(names))]
    found = remembered("alone", alone, tasks, jobs, store, tell)
    return {name: result for (name,), result in found.items() if result}


def _read(result: dict[str, Any]) -> Deletion:
    lines, composed = (tuple(map(_line, result[name])) for name in ("lines", "composed"))
    return Deletion(result["feature"], lines, composed, result["kept"], result["changed"])


def _line(text: str) -> Line:
    file, number, rest = text.split(":", 2)
    return Line(file, int(number), rest.strip())
