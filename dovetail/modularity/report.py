"""The survey for people: figures, the matrix by families, and whatever fails."""

from __future__ import annotations

from collections.abc import Iterator

from dovetail.experiments import experiments
from dovetail.features import features
from dovetail.modularity.matrix import Matrix
from dovetail.modularity.pairs import Pair
from dovetail.modularity.survey import Survey

_MARKS = {"works": "+", "has it": "=", "no sense": ".", "conflict": "x", "fails": "!"}


def report(survey: Survey) -> str:
    """Returns all of it as text."""
    parts = (figures(survey), table(survey.matrix), _failures(survey), reasons(survey))
    return "\n\n".join(text for part in parts if (text := "\n".join(part)))


def figures(survey: Survey) -> Iterator[str]:
    """Yields the counts, a sentence each."""
    found = survey.counts()
    yield (
        f"{found['experiments']} experiments x {found['features']} features = {found['pairs']} "
        f"pairs: {found['built']} built at full size, {found['not_applicable']} make no sense"
    )
    yield (
        f"{found['traced']} tiny forms traced (training and decoding), {found['executed']} trained "
        "and decoded for real"
    )
    yield f"{found['failing']} fail; {found['lines_changed']} lines in other files must change"


def table(matrix: Matrix) -> Iterator[str]:
    """Yields a row a feature, a column a tiny form that the sizes of a family share."""
    known = experiments()
    tried = {name for name, _ in (*matrix.traced, *matrix.executed)}
    columns = sorted(name for name in tried if not known[name].variant_of)
    width = max((len(name) for name in matrix.features), default=0)
    for depth in range(max(map(len, columns), default=0)):
        letters = (name.ljust(depth + 1)[depth] for name in columns)
        yield f"{'':{width}}  {' '.join(letters)}".rstrip()
    kinds = features()
    for feature in sorted(matrix.features, key=lambda name: (kinds[name].kind, name)):
        marks = (_mark(matrix, name, feature) for name in columns)
        yield f"{feature:{width}}  {' '.join(marks)}  {kinds[feature].kind}"
    yield (
        "* trained and decoded   + traced   = has it already   . makes no sense   "
        "x said to conflict   ! fails"
    )


def _mark(matrix: Matrix, name: str, feature: str) -> str:
    pair = (name, feature)
    stages = (matrix.built.get(pair), matrix.traced.get(pair), matrix.executed.get(pair))
    last: Pair | None = next((stage for stage in reversed(stages) if stage is not None), None)
    if last is None:
        return " "
    return "*" if last.stage == "executed" else _MARKS[last.outcome]


def _failures(survey: Survey) -> Iterator[str]:
    for pair in survey.matrix.failing:
        what = f"{pair.experiment} with {pair.feature}"
        yield f"{what} fails after it was {pair.stage}: {pair.detail}"
    for found in survey.deletions.values():
        for line in found.lines:
            yield f"without {found.feature} this line must go: {line}"
        for name, what in found.changed.items():
            yield f"without {found.feature} {name} resolves otherwise: {what}"
    for name, what in survey.alone.items():
        yield f"with all that it does not use taken away, {name} {what}"


def reasons(survey: Survey) -> Iterator[str]:
    """Yields why features make no sense somewhere, in their own words."""
    why: dict[tuple[str, str], int] = {}
    for pair in survey.matrix.built.values():
        if pair.outcome in ("no sense", "conflict"):
            kind = (
                "makes no sense for" if pair.outcome == "no sense" else "is said to conflict with"
            )
            said = f"{pair.feature} {kind}", pair.detail
            why[said] = why.get(said, 0) + 1
    for (what, reason), number in sorted(why.items()):
        yield f"{what} {number} experiments: {reason}"
