"""Growth: lines that change when a feature is added, against the number of models and variants.

Ours are measured, by taking a feature away from copies of the package that hold fewer families, or
fewer other features. The peers' are the estimates that the AXLearn paper (arXiv 2507.05411) prints
for 20 models with 10 variants of attention, spread out by the growth that it names.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from dovetail.features import Feature
from dovetail.modularity.deletion import probe, scratch_copy, without_feature
from dovetail.modularity.own_files import own_files
from dovetail.modularity.plot import Panel, svg
from dovetail.modularity.probe import hashed
from dovetail.modularity.store import PACKAGE

MODELS, VARIANTS = 20, 10
OURS = "Dovetail (measured)"


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


def lines_by_families(
    name: str, known: Mapping[str, Feature], counts: Sequence[int], texts: Mapping[str, str]
) -> list[tuple[int, int]]:
    """Returns (families, lines changed) for a feature, in packages with so many families."""
    files = _family_files()
    return [(count, _lines(name, known, files[count:], texts)) for count in counts]


def lines_by_features(
    name: str, known: Mapping[str, Feature], counts: Sequence[int], texts: Mapping[str, str]
) -> list[tuple[int, int]]:
    """Returns (features, lines changed) for a feature, in packages with so many features."""
    own = own_files(known[name], known)
    others = [feature.files[0] for feature in known.values() if feature.files[0] not in own]
    return [(count, _lines(name, known, others[count - 1 :], texts)) for count in counts]


def _lines(
    name: str, known: Mapping[str, Feature], gone: Sequence[str], texts: Mapping[str, str]
) -> int:
    """Takes a feature away from a package that lacks other files already."""
    with scratch_copy(PACKAGE, gone) as copy:
        before = probe(copy, "texts", *texts)
        there = {name: text for name, text in texts.items() if before[name] == hashed(text)}
        files = own_files(known[name], known)
        return without_feature(name, files, there, copy / PACKAGE.name).count


def draw(ours: Mapping[str, Sequence[tuple[int, int]]]) -> str:
    """Draws a panel a feature: lines against models, ours and the published ones."""
    return svg([_panel(feature, points) for feature, points in ours.items()])


def _panel(feature: str, points: Sequence[tuple[int, int]]) -> Panel:
    curves: dict[str, Sequence[tuple[float, float]]] = {
        row.system: [(models, row.at(models, VARIANTS)) for models in (0, 5, 10, 15, MODELS)]
        for row in PUBLISHED
        if row.feature == feature
    }
    curves[OURS] = points
    title = f"Lines in existing files to add {feature}"
    return Panel(
        title, f"models (with {VARIANTS} variants of attention each)", "lines", curves, OURS
    )


def _family_files() -> list[str]:
    """Returns the files that register families; what the laptop's experiments use comes first."""
    files = [
        str(file.relative_to(PACKAGE))
        for file in sorted(Path(PACKAGE / "models").glob("*.py"))
        if "FAMILY = register_family" in file.read_text()
        or "= register_family(" in file.read_text()
    ]
    return sorted(files, key=lambda file: not file.endswith("llama.py"))
