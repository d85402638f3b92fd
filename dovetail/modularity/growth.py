"""Growth: lines that change when a feature is added, against the number of models and variants.

Ours are measured, by taking a feature away from copies of the package that hold fewer families, or
fewer other features. Beside it stand the lines of the families that use the feature, which are new
files and no changes, but do grow with their number. The peers' are the estimates that the AXLearn
paper (arXiv 2507.05411) prints for 20 models with 10 variants of attention, spread out by the
growth that it names.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple

from dovetail.features import features
from dovetail.models import families
from dovetail.modularity.deletion import scratch_copy, settle, without_feature
from dovetail.modularity.own_files import own_files, texts_without
from dovetail.modularity.paths import file_of
from dovetail.modularity.plot import Panel, svg
from dovetail.modularity.probe import is_hash
from dovetail.modularity.store import PACKAGE, Store
from dovetail.modularity.workers import Told, remembered

MODELS, VARIANTS = 20, 10
OURS = "Dovetail (measured)"
COMPOSED = "Dovetail: in families that use it"
# Those that the paper has a table of.
MEASURED = ("rope", "moe")
_AXES = ("models", "variants")
_POINTS = 4


@dataclass(frozen=True)
class Published:
    """One system's row of the paper: lines for 20 models and 10 variants, and how they grow."""

    system: str
    feature: str
    grows_with: str
    lines: int

    def at(self, models: float, variants: float) -> float:
        """Returns the lines for other numbers of models and variants."""
        factors = {"N": models / MODELS, "M": variants / VARIANTS}
        scale = 1.0
        for letter in self.grows_with:
            scale *= factors[letter]
        return self.lines * scale


PUBLISHED = (
    Published("Megatron-LM", "rope", "NM", 400),
    Published("DeepSpeed", "rope", "NM", 320),
    Published("TorchTitan (before 2026)", "rope", "NM", 240),
    Published("Flax", "rope", "NM", 600),
    Published("Praxis", "rope", "NM", 300),
    Published("MaxText", "rope", "NM", 200),
    Published("AXLearn", "rope", "", 0),
    Published("Megatron-LM", "moe", "N", 20),
    Published("DeepSpeed", "moe", "NM", 4000),
    Published("TorchTitan (before 2026)", "moe", "NM", 400),
    Published("Praxis", "moe", "M", 5),
    Published("MaxText", "moe", "NM", 300),
    Published("AXLearn", "moe", "", 0),
)


class Point(NamedTuple):
    """What was measured in a package of one size."""

    size: int
    lines: int
    composed: int


@dataclass(frozen=True)
class Growth:
    """Lines changed to add one feature, measured in packages of several sizes.

    Attributes:
        feature: its name.
        models: families of models, lines changed, and lines of the families that use the feature.
        variants: the same for the number of features.
    """

    feature: str
    models: list[Point]
    variants: list[Point]


def growth(
    names: Iterable[str] = MEASURED,
    *,
    jobs: int = 2,
    tell: Told = lambda stage, done, total: None,
) -> list[Growth]:
    """Takes features away from packages of several sizes; what is known is not tried again."""
    points = [(name, axis, size) for name in names for axis in _AXES for size in _sizes(axis, name)]
    found = remembered("growth", lines_at, points, jobs, Store("growth"), tell)

    def along(name: str, axis: str) -> list[Point]:
        return [Point(size, *found[name, axis, size]) for size in _sizes(axis, name)]

    return [Growth(name, along(name, "models"), along(name, "variants")) for name in names]


def lines_at(name: str, axis: str, size: int) -> list[int]:
    """Takes a feature away from a package with so many families, or features, in a process."""
    known = features()
    files = own_files(known[name], known)
    texts = texts_without(files)
    gone = [file for group in _groups(axis, name)[size:] for file in group if file not in files]
    with scratch_copy(PACKAGE, gone) as copy:
        _, answer = settle(copy, "wholes", *texts)
        there = {one for one, found in answer.found.items() if is_hash(found)}
        texts = {one: text for one, text in texts.items() if one in there}
        found = without_feature(name, files, texts, copy / PACKAGE.name)
        return [found.count, len(found.composed)]


def draw(ours: Iterable[Growth]) -> str:
    """Draws a row a feature: lines against models, and against variants."""
    return svg([[_by_models(found), _by_variants(found)] for found in ours])


def _by_models(found: Growth) -> Panel:
    below = f"models (the peers': with {VARIANTS} variants each)"
    curves = _curves(found.feature, lambda row, count: row.at(count, VARIANTS), MODELS)
    return _panel(found.feature, below, curves, found.models)


def _by_variants(found: Growth) -> Panel:
    below = f"variants (the peers': in {MODELS} models)"
    curves = _curves(found.feature, lambda row, count: row.at(MODELS, count), VARIANTS)
    return _panel(found.feature, below, curves, found.variants)


def _curves(feature: str, lines: Callable[[Published, float], float], most: int) -> dict[str, Any]:
    counts = [most * part / 8 for part in range(9)]
    rows = (row for row in PUBLISHED if row.feature == feature)
    return {
        f"{row.system} (estimated)": [(count, lines(row, count)) for count in counts]
        for row in rows
    }


def _panel(feature: str, below: str, curves: dict[str, Any], ours: list[Point]) -> Panel:
    own = {
        COMPOSED: [(point.size, point.composed) for point in ours],
        OURS: [(point.size, point.lines) for point in ours],
    }
    return Panel(f"Lines in existing files to add {feature}", below, "lines", curves | own, OURS)


def _sizes(axis: str, name: str) -> list[int]:
    """Returns sizes of packages: from one family, or feature, to all there are."""
    most = len(_groups(axis, name))
    return sorted({max(1, round(most * part / _POINTS)) for part in range(_POINTS + 1)})


def _groups(axis: str, name: str) -> list[tuple[str, ...]]:
    """Returns the files that bring each family, or feature; what is needed comes first."""
    if axis == "models":
        homes = {family.from_hf.__module__ for family in families().values()}
        files = [file_of(home) for home in sorted(homes)]
        # The laptop's experiments are made of Llama's parts.
        return [(file,) for file in sorted(files, key=lambda file: not file.endswith("/llama.py"))]
    known = features()
    own = own_files(known[name], known)
    others = (one.files for one in known.values() if one.files and one.files[0] not in own)
    return [known[name].files, *others]
