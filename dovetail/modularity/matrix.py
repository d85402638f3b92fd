"""The matrix of experiments and features, as far as it can run on this machine.

Each pair is built at full size, from specs. Experiments with the same tiny model share its trace.
Each variant (an experiment with features) is traced with each feature in one family, in rotation.
On a few representatives every feature is trained and decoded.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from dovetail.experiments import experiments
from dovetail.features import features
from dovetail.modularity.pairs import PairResult, build_pair, execute_pair, tiny_text, trace_pair
from dovetail.modularity.tasks import OnProgress, ResultCache, run_in_processes

# One of each kind: dense, mixture of experts, hybrid, latent attention.
REPRESENTATIVES = ("tiny-lm", "mixtral-8x7b", "tiny-hybrid", "deepseek-v3")

_STAGES = {"built": build_pair, "traced": trace_pair, "executed": execute_pair}


@dataclass
class FeatureMatrix:
    """The results of all pairs."""

    experiments: list[str]
    features: list[str]
    built: dict[tuple[str, str], PairResult] = field(default_factory=dict)
    traced: dict[tuple[str, str], PairResult] = field(default_factory=dict)
    executed: dict[tuple[str, str], PairResult] = field(default_factory=dict)

    @property
    def failing(self) -> list[PairResult]:
        """The pairs that fail, each with the stage it reached."""
        stages: Iterable[PairResult] = (
            pair for stage in (self.built, self.traced, self.executed) for pair in stage.values()
        )
        return [pair for pair in stages if pair.outcome == "fails"]

    def counts(self) -> dict[str, int]:
        """Returns the counts that `--json` prints."""
        refused = ("not applicable", "conflict")
        return {
            "experiments": len(self.experiments),
            "features": len(self.features),
            "pairs": len(self.built),
            "not_applicable": sum(pair.outcome in refused for pair in self.built.values()),
            "built": sum(pair.stage == "built" for pair in self.built.values()),
            # An executed pair was traced, too.
            "traced": sum(
                pair.outcome == "works"
                for stage in (self.traced, self.executed)
                for pair in stage.values()
            ),
            "executed": sum(pair.outcome == "works" for pair in self.executed.values()),
            "failing": len(self.failing),
        }


def fill_matrix(
    only_experiments: Sequence[str],
    only_features: Sequence[str],
    *,
    jobs: int,
    on_progress: OnProgress,
    imports: Sequence[str] = (),
) -> FeatureMatrix:
    """Runs all pairs; results for these sources come from the cache.

    Args:
        only_experiments: their names; empty for all.
        only_features: their names; empty for all.
        jobs: the number of processes.
        on_progress: called with the stage, and the number of tasks done and in all.
        imports: imported packages whose features or experiments are among them.
    """
    cache = ResultCache("pairs", imports)
    matrix = FeatureMatrix(
        list(only_experiments or experiments()), list(only_features or features())
    )
    built = [(name, feature) for feature in matrix.features for name in matrix.experiments]
    matrix.built = _run("built", built, jobs, cache, on_progress)
    works = [pair for pair, result in matrix.built.items() if result.outcome == "works"]
    executed = [pair for pair in works if pair[0] in REPRESENTATIVES]
    shared = distinct_tiny_models(matrix.experiments)
    sizes = [pair for pair in works if pair[0] in shared and pair[0] not in REPRESENTATIVES]
    traced = [*sizes, *_rotated_variants(works)]
    matrix.traced = _run("traced", traced, jobs, cache, on_progress)
    matrix.executed = _run("executed", executed, jobs, cache, on_progress)
    return matrix


def run_pairs(stage: str, experiment: str, wanted: tuple[str, ...]) -> list[dict[str, Any]]:
    """Runs several features with one experiment: the task of one process."""
    return [asdict(_STAGES[stage](experiment, feature)) for feature in wanted]


def _run(
    stage: str,
    pairs: Sequence[tuple[str, str]],
    jobs: int,
    cache: ResultCache,
    on_progress: OnProgress,
) -> dict[tuple[str, str], PairResult]:
    results_by_pair: dict[tuple[str, str], PairResult] = {}
    missing: dict[str, list[str]] = {}
    for experiment, feature in pairs:
        cached = cache.get(f"{stage} {experiment} {feature}")
        if cached is None:
            missing.setdefault(experiment, []).append(feature)
        else:
            results_by_pair[experiment, feature] = PairResult(**cached)
    on_progress(stage, len(results_by_pair), len(pairs))
    tasks = _tasks(stage, missing)
    for _, results in run_in_processes(run_pairs, tasks, jobs, cache.imports):
        for result in results:
            pair = PairResult(**result)
            results_by_pair[pair.experiment, pair.feature] = pair
        cache.update({f"{stage} {r['experiment']} {r['feature']}": r for r in results})
        on_progress(stage, len(results_by_pair), len(pairs))
    return {pair: results_by_pair[pair] for pair in pairs}


def _tasks(stage: str, missing: dict[str, list[str]]) -> list[tuple[Any, ...]]:
    """Groups features of one experiment, which share its config, into tasks."""
    size = 64 if stage == "built" else 4
    return [
        (stage, experiment, tuple(wanted[start : start + size]))
        for experiment, wanted in missing.items()
        for start in range(0, len(wanted), size)
    ]


def distinct_tiny_models(names: Sequence[str]) -> set[str]:
    """Returns one experiment per tiny model, representatives first; variants have none."""
    by_name = experiments()
    first: dict[str, str] = {}
    for name in sorted(names, key=lambda name: name not in REPRESENTATIVES):
        if not by_name[name].variant_of:
            first.setdefault(tiny_text(name), name)
    return set(first.values())


def _rotated_variants(works: Sequence[tuple[str, str]]) -> list[tuple[str, str]]:
    """Returns one pair per variant and feature, with families in rotation."""
    by_name = experiments()
    by_variant: dict[tuple[str, str], list[tuple[str, str]]] = {}
    for name, feature in works:
        if base := by_name[name].variant_of:
            by_variant.setdefault((name.removeprefix(base), feature), []).append((name, feature))
    return [pairs[turn % len(pairs)] for turn, pairs in enumerate(by_variant.values())]
