"""Golden texts: what every experiment resolves to, and the parameters that it has, a file a family.

The first size of a family stands in full. Of the others, and of variants, there is what differs:
`-` and `+` against the one that is named. A variant of another size that differs as that of the
first one does has a line of its own: how many parameters it has, and a hash of their specs. The
first line is a hash of everything, with the defaults and initializers that are not printed.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from dovetail.config import to_text
from dovetail.experiments import experiments
from dovetail.experiments.published import published_sizes
from dovetail.modularity.snapshot import hash_text, resolved_text
from dovetail.module import parameter_specs, variable_specs

FOLDER = Path(__file__).parent / "golden"
_OWN = "own"


class Resolved(NamedTuple):
    """An experiment in lines: its settings, its arrays, and both in short."""

    settings: list[str]
    arrays: list[str]
    parameters: int

    @property
    def lines(self) -> list[str]:
        """All of it."""
        return [*self.settings, *self.arrays]

    @property
    def short(self) -> str:
        """The number of parameters, and a hash of all specs."""
        seen = hashlib.sha256("\n".join(self.arrays).encode()).hexdigest()[:8]
        return f"{self.parameters:,} parameters, specs {seen}"


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
    resolved = {name: _resolved(name) for name in names}
    first: dict[str, tuple[str, list[str]]] = {}
    blocks = []
    for number, name in enumerate(names):
        base = experiments()[name].variant_of
        if not base:
            blocks.append(_size(resolved, name, names[:number]))
            continue
        suffix = name.removeprefix(base)
        changes = _changes(resolved[base].settings, resolved[name].settings)
        if suffix in first and first[suffix][1] == changes:
            blocks.append(f"## {name}, as {first[suffix][0]}: {resolved[name].short}")
            continue
        first.setdefault(suffix, (name, changes))
        blocks.append(_against(resolved, base, name))
    # Defaults and initializers are too many to print; that one changed must show all the same.
    wholes = hash_text("\n".join(resolved_text(experiments()[name]) for name in names))[:8]
    return "\n\n".join([f"# With all defaults and initializers: {wholes}", *blocks]) + "\n"


def _size(resolved: dict[str, Resolved], name: str, earlier: Sequence[str]) -> str:
    nearest = _nearest(
        resolved, name, [one for one in earlier if not experiments()[one].variant_of]
    )
    if nearest:
        return _against(resolved, nearest, name)
    return "\n".join([f"## {name}: {resolved[name].short}", *resolved[name].lines])


def _against(resolved: dict[str, Resolved], base: str, name: str) -> str:
    changes = _changes(resolved[base].lines, resolved[name].lines)
    return "\n".join([f"## {name}, against {base}: {resolved[name].short}", *changes])


def _nearest(resolved: dict[str, Resolved], name: str, earlier: Sequence[str]) -> str:
    """Returns the earlier experiment with the fewest differences; none where all differ."""
    lines = resolved[name].lines
    changes = {base: len(_changes(resolved[base].lines, lines)) for base in earlier}
    nearest = min(changes, key=lambda base: changes[base], default="")
    return nearest if changes.get(nearest, 0) < len(lines) else ""


def _place(name: str, order: list[str]) -> tuple[int, str]:
    base = experiments()[name].variant_of or name
    return (order.index(base) if base in order else 0), name


def _resolved(name: str) -> Resolved:
    config = experiments()[name].config()
    model = config.build().model
    parameters = parameter_specs(model)
    specs: dict[str, Any] = {**parameters, **variable_specs(model)}
    arrays = [_spec(path, one) for path, one in specs.items()]
    size = sum(spec.size for spec in parameters.values())
    return Resolved(to_text(config).splitlines(), arrays, size)


def _spec(path: str, spec: Any) -> str:
    axes = ",".join(axis or "-" for axis in spec.axes)
    shape = ",".join(map(str, spec.shape))
    return f"{path}: {spec.dtype}[{shape}] ({axes})"


def _changes(before: list[str], after: list[str]) -> list[str]:
    old, new = set(before), set(after)
    gone = [f"- {line}" for line in before if line not in new]
    return [*gone, *(f"+ {line}" for line in after if line not in old)]
