"""Growth: lines that change when a feature is added, against how many models there are.

Ours are measured, at several numbers of families, by taking features away from a package that has
so many. The peers' are the estimates that the AXLearn paper (arXiv 2507.05411) prints for 20 models
with 10 variants of attention, spread out by the growth that it names.
"""

from __future__ import annotations

from dataclasses import dataclass

MODELS, VARIANTS = 20, 10


@dataclass(frozen=True)
class Published:
    """One system's row of the paper: lines for 20 models and 10 variants, and how they grow."""

    system: str
    feature: str
    grows_with: str
    lines: int

    def at(self, models: int, variants: int) -> float:
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
