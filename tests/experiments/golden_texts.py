"""Golden texts: what every experiment resolves to, and the parameters that it has, a file a family.

The first size of a family stands in full. Of the others, and of variants, there is what differs:
`-` and `+` against the one that is named.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from dovetail.config import to_text
from dovetail.experiments import experiments
from dovetail.experiments.published import published_sizes
from dovetail.module import parameter_specs, variable_specs

FOLDER = Path(__file__).parent / "golden"
_OWN = "own"


def families() -> dict[str, list[str]]:
    """Returns the experiments of each golden file, sizes before their variants."""
    sizes = published_sizes()
    grouped: dict[str, list[str]] = {}
    for name, found in experiments().items():
        size = sizes.get(found.variant_of or name)
        grouped.setdefault(size.family if size else _OWN, []).append(name)
    order = list(sizes)
    for names in grouped.values():
        names.sort(key=lambda name: _place(name, order))
    return grouped


def golden_text(names: Sequence[str]) -> str:
    """Returns the text of one golden file."""
    lines = {name: _lines(name) for name in names}
    blocks = []
    for number, name in enumerate(names):
        base = experiments()[name].variant_of or _nearest(lines, name, names[:number])
        if base:
            blocks.append(f"## {name}, against {base}\n" + "\n".join(_changes(lines, base, name)))
        else:
            blocks.append(f"## {name}\n" + "\n".join(lines[name]))
    return "\n\n".join(blocks) + "\n"


def _place(name: str, order: list[str]) -> tuple[int, str]:
    base = experiments()[name].variant_of or name
    return (order.index(base) if base in order else 0), name


def _nearest(lines: dict[str, list[str]], name: str, earlier: Sequence[str]) -> str:
    """Returns the earlier experiment with the fewest differences; none where all differ."""
    changes = {base: len(_changes(lines, base, name)) for base in earlier}
    nearest = min(changes, key=lambda base: changes[base], default="")
    return nearest if changes.get(nearest, 0) < len(lines[name]) else ""


def _lines(name: str) -> list[str]:
    """Returns the lines of an experiment: settings first, then parameters and variables."""
    config = experiments()[name].config()
    model = config.build().model
    specs: dict[str, Any] = {**parameter_specs(model), **variable_specs(model)}
    return [*to_text(config).splitlines(), *(_spec(path, one) for path, one in specs.items())]


def _spec(path: str, spec: Any) -> str:
    axes = ",".join(axis or "-" for axis in spec.axes)
    shape = ",".join(map(str, spec.shape))
    return f"{path}: {spec.dtype}[{shape}] ({axes})"


def _changes(lines: dict[str, list[str]], base: str, name: str) -> list[str]:
    before, after = set(lines[base]), set(lines[name])
    gone = [f"- {line}" for line in lines[base] if line not in after]
    return [*gone, *(f"+ {line}" for line in lines[name] if line not in before)]
