"""Reports of a measurement: text for the terminal, and a page with a plot and JSON on disk."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

from dovetail.experiments import experiments
from dovetail.features import features
from dovetail.modularity.commits import Commit, feature_commits
from dovetail.modularity.growth import FeatureGrowth, draw_growth, measure_growth
from dovetail.modularity.matrix import FeatureMatrix
from dovetail.modularity.mentions import mentions
from dovetail.modularity.meter import Measurement
from dovetail.modularity.pairs import PairResult
from dovetail.modularity.tasks import OnProgress
from dovetail.utils import atomic_write, plural

NAME = "modularity-measured"
_MARKS = {"works": "+", "unchanged": "=", "not applicable": ".", "conflict": "x", "fails": "!"}


def as_text(result: Measurement) -> str:
    """Returns the report for the terminal."""
    sections = (_counts(result), _table(result.matrix), _failures(result), _refusals(result))
    return "\n\n".join(text for section in sections if (text := "\n".join(section)))


def write_report(result: Measurement, folder: Path, *, jobs: int, on_progress: OnProgress) -> None:
    """Measures growth, reads the git history, and writes page, plot and JSON to a folder."""
    growth = measure_growth(jobs=jobs, on_progress=on_progress)
    commits = feature_commits(features())
    folder.mkdir(parents=True, exist_ok=True)
    everything = result.as_json() | {
        "growth": [asdict(one) for one in growth],
        "commits": {name: [asdict(one) for one in each] for name, each in commits.items()},
    }
    atomic_write(folder / f"{NAME}.json", json.dumps(everything, indent=1))
    atomic_write(folder / f"{NAME}.svg", draw_growth(growth))
    atomic_write(folder / f"{NAME}.md", "\n\n".join(_page(result, growth, commits)) + "\n")


def _counts(measured: Measurement) -> Iterator[str]:
    counts = measured.counts()
    yield (
        f"{counts['experiments']} experiments x {counts['features']} features = {counts['pairs']} "
        f"pairs: {counts['built']} built at full size, {counts['not_applicable']} not applicable"
    )
    yield (
        f"{counts['traced']} tiny models traced (training and decoding), {counts['executed']} "
        "trained and decoded"
    )
    yield f"{counts['failing']} fail; {counts['lines_changed']} lines in other files must change"


def _table(matrix: FeatureMatrix) -> Iterator[str]:
    """Yields a row per feature, with a column per tiny model."""
    by_name = experiments()
    tried = {name for name, _ in (*matrix.traced, *matrix.executed)}
    columns = sorted(name for name in tried if not by_name[name].variant_of)
    width = max((len(name) for name in matrix.features), default=0)
    for depth in range(max(map(len, columns), default=0)):
        letters = (name.ljust(depth + 1)[depth] for name in columns)
        yield f"{'':{width}}  {' '.join(letters)}".rstrip()
    kinds = features()
    for feature in sorted(matrix.features, key=lambda name: (kinds[name].kind, name)):
        marks = (_mark(matrix, name, feature) for name in columns)
        yield f"{feature:{width}}  {' '.join(marks)}  {kinds[feature].kind}"
    yield (
        "* trained and decoded   + traced   = unchanged   . not applicable   x conflict   ! fails"
    )


def _mark(matrix: FeatureMatrix, name: str, feature: str) -> str:
    pair = (name, feature)
    stages = (matrix.built.get(pair), matrix.traced.get(pair), matrix.executed.get(pair))
    last: PairResult | None = next((one for one in reversed(stages) if one is not None), None)
    if last is None:
        return " "
    return "*" if last.stage == "executed" else _MARKS[last.outcome]


def _failures(measured: Measurement) -> Iterator[str]:
    for pair in measured.matrix.failing:
        what = f"{pair.experiment} with {pair.feature}"
        yield f"{what} fails after it was {pair.stage}: {pair.detail}"
    for deletion in measured.deletions.values():
        for line in deletion.lines:
            yield f"without {deletion.feature} this line must change: {line}"
        for name, what in deletion.changed.items():
            yield f"without {deletion.feature} {name} resolves to another config: {what}"
    for name, what in measured.changed_alone.items():
        yield f"with every feature deleted that it does not use, {name} {what}"


def _refusals(measured: Measurement) -> Iterator[str]:
    """Yields why features do not apply to some experiments, as they declare."""
    verbs = {"not applicable": "does not apply to", "conflict": "conflicts with"}
    counts: dict[tuple[str, str], int] = {}
    for pair in measured.matrix.built.values():
        if pair.outcome in verbs:
            refusal = f"{pair.feature} {verbs[pair.outcome]}", pair.detail
            counts[refusal] = counts.get(refusal, 0) + 1
    for (what, reason), number in sorted(counts.items()):
        yield f"{what} {plural(number, 'experiment')}: {reason}"


def _page(
    measured: Measurement,
    growth: Iterable[FeatureGrowth],
    commits: Mapping[str, Sequence[Commit]],
) -> list[str]:
    """Returns the paragraphs of the page."""
    return [
        "# Modularity: the measurements",
        "Written by `dovetail modularity --write docs`. [How they are measured](modularity.md).",
        _listed(_counts(measured)),
        "## Growth",
        f"![Lines in existing files to add a feature]({NAME}.svg)",
        _listed(_growth(growth)),
        "## By feature",
        (
            "*Lines changed* are in code that the feature does not own, and must be 0. *Allowed "
            "mentions* are lines of shared files that name the feature for a [stated "
            "reason](../dovetail/modularity/mentions.py). *Compositions* are lines of models, "
            "experiments and file formats that use it. *Compared* experiments do not use it, and "
            "stayed the same without it. A feature with a star owns nothing but its modifier: it "
            "sets components that exist anyway, so its 0 says little."
        ),
        "\n".join(_by_feature(measured, commits)),
        "## The commits that added the features",
        (
            "Lines added or removed in existing files: in compositions (models, experiments, file "
            "formats, features), and in all others. A commit may do other things, too: the largest "
            "rearranged the layers into folders."
        ),
        "\n".join(_by_commit(commits)),
        "## Declared not applicable",
        _listed(_refusals(measured)),
        "## The matrix",
        "A column is a tiny model, which several sizes and variants share.",
        "\n".join(["```text", *_table(measured.matrix), "```"]),
    ]


def _listed(lines: Iterable[str]) -> str:
    return "\n".join(f"- {line}" for line in lines)


def _growth(growth: Iterable[FeatureGrowth]) -> Iterator[str]:
    for one in growth:
        for what, points in (("families", one.models), ("features", one.variants)):
            at = ", ".join(
                f"{p.lines} with {p.size} ({p.family_lines} in families)" for p in points
            )
            yield f"{one.feature}, lines changed by the number of {what}: {at}"


def _by_feature(measured: Measurement, commits: Mapping[str, Sequence[Commit]]) -> Iterator[str]:
    by_name = features()
    yield (
        "| feature | lines changed | allowed mentions | compositions | compared | commits of its "
        "code |"
    )
    yield "|---|---|---|---|---|---|"
    for name, one in measured.deletions.items():
        star = "" if by_name[name].files else "*"
        hashes = ", ".join(f"`{each.commit}`" for each in commits[name])
        yield (
            f"| {name}{star} | {one.lines_changed} | {len(mentions(by_name[name]))} | "
            f"{len(one.compositions)} in {len(one.composing_files)} files | {one.compared} | "
            f"{hashes} |"
        )


def _by_commit(commits: Mapping[str, Sequence[Commit]]) -> Iterator[str]:
    yield "| commit | features | new lines | in compositions | in other files |"
    yield "|---|---|---|---|---|"
    added: dict[Commit, list[str]] = {}
    for name, each in commits.items():
        for one in each:
            added.setdefault(one, []).append(name)
    for one, names in added.items():
        lines = f"{one.new_lines} | {one.composition_lines} | {one.other_lines}"
        yield f"| `{one.commit}` {one.subject} | {', '.join(names)} | {lines} |"
