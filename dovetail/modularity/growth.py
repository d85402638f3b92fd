"""Growth: lines changed to add a feature, against the number of models and variants.

Ours are measured, by deleting a feature from copies of the package with fewer families, or fewer
other features. The plot also has the lines of families that use the feature: these are new files,
not changes, but their number grows. The peers' curves are the estimates of the AXLearn paper
(arXiv 2507.05411) for 20 models with 10 attention variants, scaled by the LoC-complexity that it
states.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple

from dovetail.features import features
from dovetail.models import families
from dovetail.modularity.deletion import (
    copy_without,
    delete_broken_compositions,
    delete_feature,
)
from dovetail.modularity.ownership import configs_without, file_of, owned_code
from dovetail.modularity.snapshot import is_hash
from dovetail.modularity.tasks import PACKAGE, OnProgress, ResultCache, run_cached
from dovetail.utils.plot import Panel, draw_panels

MODELS, VARIANTS = 20, 10
OURS = "Dovetail (measured)"
IN_FAMILIES = "Dovetail: in families that use it"
# The paper has a table for each.
MEASURED = ("rope", "moe")
_AXES = ("models", "variants")
_POINTS = 4


@dataclass(frozen=True)
class PublishedEstimate:
    """A row of the paper: lines for 20 models and 10 variants, and the LoC-complexity.

    `complexity` is what the lines are proportional to: N models, M variants, or neither.
    """

    system: str
    feature: str
    complexity: str
    lines: int

    def at(self, models: float, variants: float) -> float:
        """Returns the estimate for other numbers of models and variants."""
        factors = {"N": models / MODELS, "M": variants / VARIANTS}
        scale = 1.0
        for letter in self.complexity:
            scale *= factors[letter]
        return self.lines * scale


PUBLISHED = (
    PublishedEstimate("Megatron-LM", "rope", "NM", 400),
    PublishedEstimate("DeepSpeed", "rope", "NM", 320),
    PublishedEstimate("TorchTitan (before 2026)", "rope", "NM", 240),
    PublishedEstimate("Flax", "rope", "NM", 600),
    PublishedEstimate("Praxis", "rope", "NM", 300),
    PublishedEstimate("MaxText", "rope", "NM", 200),
    PublishedEstimate("AXLearn", "rope", "", 0),
    PublishedEstimate("Megatron-LM", "moe", "N", 20),
    PublishedEstimate("DeepSpeed", "moe", "NM", 4000),
    PublishedEstimate("TorchTitan (before 2026)", "moe", "NM", 400),
    PublishedEstimate("Praxis", "moe", "M", 5),
    PublishedEstimate("MaxText", "moe", "NM", 300),
    PublishedEstimate("AXLearn", "moe", "", 0),
)


class GrowthPoint(NamedTuple):
    """The measurement in a package of one size."""

    size: int
    lines: int
    family_lines: int


@dataclass(frozen=True)
class FeatureGrowth:
    """Lines changed to add one feature, measured in packages of several sizes.

    Attributes:
        feature: its name.
        models: by the number of model families.
        variants: by the number of features.
    """

    feature: str
    models: list[GrowthPoint]
    variants: list[GrowthPoint]


def measure_growth(
    names: Iterable[str] = MEASURED,
    *,
    jobs: int = 2,
    on_progress: OnProgress = lambda stage, done, total: None,
) -> list[FeatureGrowth]:
    """Deletes features from packages of several sizes; known results come from the cache."""
    points = [(name, axis, size) for name in names for axis in _AXES for size in _sizes(axis, name)]
    results = run_cached("growth", lines_at, points, jobs, ResultCache("growth"), on_progress)

    def along(name: str, axis: str) -> list[GrowthPoint]:
        return [GrowthPoint(size, *results[name, axis, size]) for size in _sizes(axis, name)]

    return [FeatureGrowth(name, along(name, "models"), along(name, "variants")) for name in names]


def lines_at(name: str, axis: str, size: int) -> list[int]:
    """Deletes a feature from a package with a given number of families, or of features.

    Returns the lines changed, and the lines of families that use the feature.
    """
    by_name = features()
    owned = owned_code(by_name[name], by_name)
    texts = configs_without(owned)
    others = [code for group in _groups(axis, name)[size:] for code in group if code not in owned]
    with copy_without(PACKAGE, others) as copy:
        _, snapshot = delete_broken_compositions(copy, "configs", *texts)
        left = {one for one, value in snapshot.hashes.items() if is_hash(value)}
        texts = {one: text for one, text in texts.items() if one in left}
        deletion = delete_feature(name, owned, texts, copy / PACKAGE.name)
        return [deletion.lines_changed, len(deletion.compositions)]


def draw_growth(ours: Iterable[FeatureGrowth]) -> str:
    """Draws a row per feature: lines against models, and against variants."""
    return draw_panels([[_panel(found, axis) for axis in _AXES] for found in ours])


def _panel(found: FeatureGrowth, axis: str) -> Panel:
    """Draws lines against one number, with the peers' estimates at the paper's other number."""
    paper: dict[str, float] = {"models": MODELS, "variants": VARIANTS}
    below = {
        "models": f"models (the peers': with {VARIANTS} variants each)",
        "variants": f"variants (the peers': in {MODELS} models)",
    }
    counts = [paper[axis] * part / 8 for part in range(9)]
    curves: dict[str, Any] = {
        f"{row.system} (estimated)": [(n, row.at(**(paper | {axis: n}))) for n in counts]
        for row in PUBLISHED
        if row.feature == found.feature
    }
    points: list[GrowthPoint] = getattr(found, axis)
    curves[IN_FAMILIES] = [(point.size, point.family_lines) for point in points]
    curves[OURS] = [(point.size, point.lines) for point in points]
    title = f"Lines in existing files to add {found.feature}"
    return Panel(title, below[axis], "lines", curves, OURS)


def _sizes(axis: str, name: str) -> list[int]:
    """Returns the sizes to measure: from one family, or feature, to all."""
    most = len(_groups(axis, name))
    return sorted({max(1, round(most * part / _POINTS)) for part in range(_POINTS + 1)})


def _groups(axis: str, name: str) -> list[tuple[str, ...]]:
    """Returns the code of each family, or feature; those that others need come first."""
    if axis == "models":
        homes = {family.from_hf.__module__ for family in families().values()}
        files = [file_of(home) for home in sorted(homes)]
        # The laptop experiments are Llama models.
        return [(file,) for file in sorted(files, key=lambda file: not file.endswith("/llama.py"))]
    by_name = features()
    owned = owned_code(by_name[name], by_name)
    # A feature of an imported package has no definition here.
    others = (one for one in by_name.values() if one.definition and one.definition not in owned)
    groups = ((one.definition, *one.files) for one in others)
    return [(by_name[name].definition, *by_name[name].files), *groups]
