"""The matrix: every experiment with every feature, as far as it can be tried on this machine.

Each pair is built at full size, from specs. Experiments that share a tiny form share its trace. A
variant is made of features itself: each variant is traced with each feature in one family, another
one every time. On a few representatives every feature is trained and decoded for real.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from dovetail.experiments import experiments
from dovetail.features import features
from dovetail.modularity.pairs import Pair, built_pair, executed_pair, tiny_text, traced_pair
from dovetail.modularity.store import Store
from dovetail.modularity.workers import Told, in_processes

# One of each kind: dense, with experts, a hybrid, with latent attention.
REPRESENTATIVES = ("tiny-lm", "mixtral-8x7b", "tiny-hybrid", "deepseek-v3")

_STAGES = {"built": built_pair, "traced": traced_pair, "executed": executed_pair}


@dataclass
class Matrix:
    """What came of all pairs."""

    experiments: list[str]
    features: list[str]
    built: dict[tuple[str, str], Pair] = field(default_factory=dict)
    traced: dict[tuple[str, str], Pair] = field(default_factory=dict)
    executed: dict[tuple[str, str], Pair] = field(default_factory=dict)

    @property
    def failing(self) -> list[Pair]:
        """The pairs that should work and do not, each with the stage it reached."""
        stages: Iterable[Pair] = (
            pair for stage in (self.built, self.traced, self.executed) for pair in stage.values()
        )
        return [pair for pair in stages if pair.outcome == "fails"]

    def counts(self) -> dict[str, int]:
        """Returns the figures that `--json` prints."""
        refused = ("no sense", "conflict")
        no_sense = [pair for pair in self.built.values() if pair.outcome in refused]
        return {
            "experiments": len(self.experiments),
            "features": len(self.features),
            "pairs": len(self.built),
            "not_applicable": len(no_sense),
            "built": sum(pair.stage == "built" for pair in self.built.values()),
            # What runs was traced.
            "traced": sum(
                pair.outcome == "works"
                for stage in (self.traced, self.executed)
                for pair in stage.values()
            ),
            "executed": sum(pair.outcome == "works" for pair in self.executed.values()),
            "failing": len(self.failing),
        }


def measure(
    only_experiments: Sequence[str] = (),
    only_features: Sequence[str] = (),
    *,
    jobs: int = 2,
    store: Store | None = None,
    tell: Told = lambda stage, done, total: None,
) -> Matrix:
    """Fills the matrix in; what is known for these sources is not tried again.

    Args:
        only_experiments: their names; none means all.
        only_features: their names; none means all.
        jobs: in how many processes.
        store: where results are kept.
        tell: is told the stage, and how many of how many tasks are done.
    """
    store = store or Store("pairs")
    matrix = Matrix(list(only_experiments or experiments()), list(only_features or features()))
    built = [(name, feature) for feature in matrix.features for name in matrix.experiments]
    matrix.built = _run("built", built, jobs, store, tell)
    works = [pair for pair, found in matrix.built.items() if found.outcome == "works"]
    executed = [pair for pair in works if pair[0] in REPRESENTATIVES]
    shared = forms(matrix.experiments)
    plain = [pair for pair in works if pair[0] in shared and pair[0] not in REPRESENTATIVES]
    traced = [*plain, *_in_turn(works)]
    matrix.traced = _run("traced", traced, jobs, store, tell)
    matrix.executed = _run("executed", executed, jobs, store, tell)
    return matrix


def try_all(stage: str, experiment: str, wanted: tuple[str, ...]) -> list[dict[str, Any]]:
    """Tries several features with one experiment: the work of one process."""
    return [_STAGES[stage](experiment, feature).as_json() for feature in wanted]


def _run(
    stage: str, pairs: Sequence[tuple[str, str]], jobs: int, store: Store, tell: Told
) -> dict[tuple[str, str], Pair]:
    found: dict[tuple[str, str], Pair] = {}
    missing: dict[str, list[str]] = {}
    for experiment, feature in pairs:
        known = store.get(f"{stage} {experiment} {feature}")
        if known is None:
            missing.setdefault(experiment, []).append(feature)
        else:
            found[experiment, feature] = Pair(**known)
    tell(stage, len(found), len(pairs))
    for _, results in in_processes(try_all, _tasks(stage, missing), jobs):
        for result in results:
            pair = Pair(**result)
            found[pair.experiment, pair.feature] = pair
        store.put_all({f"{stage} {r['experiment']} {r['feature']}": r for r in results})
        tell(stage, len(found), len(pairs))
    return {pair: found[pair] for pair in pairs}


def _tasks(stage: str, missing: dict[str, list[str]]) -> list[tuple[Any, ...]]:
    """Splits the work: features of one experiment together, since they share its config."""
    size = 64 if stage == "built" else 4
    return [
        (stage, experiment, tuple(wanted[start : start + size]))
        for experiment, wanted in missing.items()
        for start in range(0, len(wanted), size)
    ]


def forms(names: Sequence[str]) -> set[str]:
    """Returns one experiment for each tiny form that is no variant's, representatives first."""
    known = experiments()
    first: dict[str, str] = {}
    for name in sorted(names, key=lambda name: name not in REPRESENTATIVES):
        if not known[name].variant_of:
            first.setdefault(tiny_text(name), name)
    return set(first.values())


def _in_turn(works: Sequence[tuple[str, str]]) -> list[tuple[str, str]]:
    """Returns one pair for each variant and feature: families take turns."""
    known = experiments()
    able: dict[tuple[str, str], list[tuple[str, str]]] = {}
    for name, feature in works:
        if base := known[name].variant_of:
            able.setdefault((name.removeprefix(base), feature), []).append((name, feature))
    return [pairs[turn % len(pairs)] for turn, pairs in enumerate(able.values())]
