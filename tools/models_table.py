"""Prints the table of docs/models.md: the published sizes with their parameter counts.

    python tools/models_table.py

tests/docs/test_models_table.py compares the page with it.
"""

from __future__ import annotations

from dovetail.experiments.published import published_sizes
from dovetail.models import families
from dovetail.module import parameter_specs


def main() -> None:
    """Prints the table."""
    print("\n".join(table()))


def table() -> list[str]:
    """Returns the lines of the table, in Markdown."""
    lines = ["| experiment | family | parameters | active | recipe |", "|---|---|---:|---:|---|"]
    for name, size in published_sizes().items():
        specs = parameter_specs(families()[size.family].from_hf(size.values).build()).values()
        total, active = sum(s.size for s in specs), sum(s.active_size for s in specs)
        recipe = "published" if size.recipe.published else "ours"
        shown = f"{active:,}" if active != total else ""
        lines.append(f"| `{name}` | {size.family} | {total:,} | {shown} | {recipe} |")
    return lines


if __name__ == "__main__":
    main()
