"""The guard: no file names a feature that is not its own, and no config takes over a child's field.

Both are read from the sources and from the config classes; nothing is run.
"""

from __future__ import annotations

import ast
import importlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dovetail.config import REQUIRED, Config, Part
from dovetail.features import Feature
from dovetail.modularity.leaks import COMPOSERS, Line
from dovetail.modularity.store import PACKAGE


def foreign_names(known: Mapping[str, Feature], package: Path = PACKAGE) -> list[Line]:
    """Returns the lines that name what a feature defines, in files that are not the feature's."""
    owners = {file: feature for feature in known.values() for file in feature.files}
    names = {name: file for file in owners for name in _defined(package / file)}
    found = []
    for file in sorted(package.rglob("*.py")):
        own = str(file.relative_to(package))
        if own.partition("/")[0] in (*COMPOSERS, "modularity"):
            continue
        lines = file.read_text().splitlines()
        for number, name in _names(ast.parse("\n".join(lines))):
            home = names.get(name)
            if home is not None and not _is_at_home(own, home, owners[home]):
                found.append(Line(own, number, lines[number - 1].strip()))
    return sorted(set(found))


def grown_fields() -> list[str]:
    """Returns the fields of configs that a child of theirs declares too, with a value of its own.

    A parent may share a name with a child where the child's field is REQUIRED: such a field is a
    size that parents set. A wrapper has the sizes of what it wraps.
    """
    found = []
    for part in _subclasses(Part):
        config: Any = getattr(part, "Config", None)
        if config is None or not part.__module__.startswith("dovetail."):
            continue
        common = set(Config.fields()) | _inherited_by_all()
        for name, child in _children(config):
            shared = set(config.fields()) & set(type(child).fields()) - common
            for field in sorted(shared):
                if _default(child, field) is not REQUIRED:
                    found.append(f"{part.__module__}:{part.__name__}.{field} is a field of {name}")
    return sorted(set(found))
