"""The modularity meter: the matrix of pairs, and the deletion experiment for every feature."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from dovetail.config import ConfigError, did_you_mean, import_packages, to_text
from dovetail.experiments import experiments, find_experiment
from dovetail.features import features
from dovetail.modularity.deletion import (
    Deletion,
    delete_feature,
    delete_package,
    delete_unused,
    take_snapshot,
)
from dovetail.modularity.matrix import FeatureMatrix, distinct_tiny_models, fill_matrix
from dovetail.modularity.ownership import (
    configs_without,
    features_of,
    own_experiments,
    owned_code,
    package_of,
)
from dovetail.modularity.snapshot import config_hashes, is_hash
from dovetail.modularity.tasks import PACKAGE, OnProgress, ResultCache, run_cached
from dovetail.run import load_all_components

_MAX_JOBS = 1024


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
    imports: Sequence[str] = (),
) -> Measurement:
    """Measures; results for these sources come from the cache.

    Args:
        only_experiments: their names; empty for all.
        only_features: their names; empty for all, or for those of `imports`.
        jobs: the number of processes.
        on_progress: called with the stage, and the number of tasks done and in all.
        imports: packages of your own; they are imported.

    Raises:
        ConfigError: for an unknown name, packages without a feature, or no process.
    """
    if not 1 <= jobs <= _MAX_JOBS:
        raise ConfigError(f"jobs: expected 1 to {_MAX_JOBS:,}, got {jobs:,}.")
    load_all_components()
    if imports:
        import_packages(imports)
    only_features = _known_features(only_features, imports)
    for name in only_experiments:
        find_experiment(name)
    matrix = fill_matrix(
        only_experiments, only_features, jobs=jobs, on_progress=on_progress, imports=imports
    )
    cache = ResultCache("deletions", imports)
    names = [(name,) for name in matrix.features]
    deleted = run_cached("deleted", deletion_of, names, jobs, cache, on_progress)
    # With features of other packages alone, there is nothing of ours to delete.
    own = own_experiments() if any(features()[name].definition for name in matrix.features) else {}
    compared = [name for name in matrix.experiments if name in own]
    models = [(name,) for name in sorted(distinct_tiny_models(compared))]
    alone = run_cached("alone", change_alone, models, jobs, cache, on_progress)
    return Measurement(
        matrix,
        {name: Deletion.from_json(result) for (name,), result in deleted.items()},
        {name: result for (name,), result in alone.items() if result},
    )


def _known_features(wanted: Sequence[str], imports: Sequence[str]) -> Sequence[str]:
    """Returns the features to measure; empty for all. Raises a ConfigError for an unknown one."""
    for name in wanted:
        if name not in features():
            raise ConfigError(f"There is no feature {name!r}. {did_you_mean(name, features())}")
    if wanted or not imports:
        return wanted
    found = features_of(imports)
    if not found:
        raise ConfigError(
            f"imports {', '.join(imports)}: it registers no feature. Decorate a modifier with "
            "dovetail.features.feature."
        )
    return found


def deletion_of(name: str) -> dict[str, Any]:
    """Deletes one feature: the task of one process."""
    by_name = features()
    if not by_name[name].definition:
        return delete_package(name, package_of(by_name[name]), _config_hashes()).as_json()
    owned = owned_code(by_name[name], by_name)
    return delete_feature(name, owned, configs_without(owned), before=_config_hashes()).as_json()


@functools.cache
def _config_hashes() -> dict[str, str]:
    return config_hashes(*own_experiments())


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
