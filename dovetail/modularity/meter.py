"""The modularity meter: the matrix of pairs, and the deletion experiment for every feature."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from dovetail.config import to_text
from dovetail.experiments import experiments
from dovetail.features import features
from dovetail.modularity.deletion import Deletion, delete_feature, delete_unused, take_snapshot
from dovetail.modularity.matrix import FeatureMatrix, distinct_tiny_models, fill_matrix
from dovetail.modularity.ownership import configs_without, owned_code
from dovetail.modularity.snapshot import config_hashes, is_hash
from dovetail.modularity.tasks import PACKAGE, OnProgress, ResultCache, run_cached


@dataclass(frozen=True)
class Measurement:
    """What the meter found.

    Attributes:
        matrix: every experiment with every feature.
        deletions: the deletion experiment, by feature.
        changed_alone: the tiny models whose programs change when all that they do not use is
            deleted, each with the new hash or the error.
    """

    matrix: FeatureMatrix
    deletions: dict[str, Deletion]
    changed_alone: dict[str, str]

    @property
    def lines_changed(self) -> int:
        """The number of lines in other files that must change, over all features."""
        deleted = sum(deletion.lines_changed for deletion in self.deletions.values())
        return deleted + len(self.changed_alone)

    def counts(self) -> dict[str, int]:
        """Returns the counts that `--json` prints."""
        return {**self.matrix.counts(), "lines_changed": self.lines_changed}

    def as_json(self) -> dict[str, Any]:
        """Returns the counts and every result."""
        stages = (self.matrix.built, self.matrix.traced, self.matrix.executed)
        return {
            **self.counts(),
            "failures": [asdict(pair) for pair in self.matrix.failing],
            "deletions": [deletion.as_json() for deletion in self.deletions.values()],
            "changed_alone": self.changed_alone,
            "matrix": [asdict(pair) for stage in stages for pair in stage.values()],
        }


def measure_modularity(
    only_experiments: Sequence[str] = (),
    only_features: Sequence[str] = (),
    *,
    jobs: int = 2,
    on_progress: OnProgress = lambda stage, done, total: None,
) -> Measurement:
    """Measures; results for these sources come from the cache."""
    matrix = fill_matrix(only_experiments, only_features, jobs=jobs, on_progress=on_progress)
    cache = ResultCache("deletions")
    names = [(name,) for name in matrix.features]
    deleted = run_cached("deleted", deletion_of, names, jobs, cache, on_progress)
    models = [(name,) for name in sorted(distinct_tiny_models(matrix.experiments))]
    alone = run_cached("alone", change_alone, models, jobs, cache, on_progress)
    return Measurement(
        matrix,
        {name: Deletion.from_json(result) for (name,), result in deleted.items()},
        {name: result for (name,), result in alone.items() if result},
    )


def deletion_of(name: str) -> dict[str, Any]:
    """Deletes one feature: the task of one process."""
    by_name = features()
    owned = owned_code(by_name[name], by_name)
    return delete_feature(name, owned, configs_without(owned), before=_config_hashes()).as_json()


@functools.cache
def _config_hashes() -> dict[str, str]:
    return config_hashes(*experiments())


def change_alone(experiment: str) -> str:
    """Says how a tiny model changes when all that it does not use is deleted; empty if it does not.

    This is the task of one process.
    """
    by_name = features()
    owned = {name: owned_code(feature, by_name) for name, feature in by_name.items()}
    after = delete_unused(experiment, to_text(experiments()[experiment].tiny()), owned)
    before = take_snapshot(PACKAGE.parent, "programs", experiment).hashes[experiment]
    if not is_hash(before):
        return f"cannot be traced: {before}"
    return "" if before == after else f"computes otherwise: {after}"
