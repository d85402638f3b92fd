"""The guard: no file names a feature that is not its own, and no config takes over a child's field.

Both are read from the sources and from the config classes; nothing is run.
"""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, get_type_hints

from dovetail.config import Config, Part
from dovetail.features import Feature
from dovetail.modularity.handed_down import HANDED_DOWN
from dovetail.modularity.leaks import COMPOSERS, Line
from dovetail.modularity.own_files import own_files
from dovetail.modularity.paths import is_inside
from dovetail.modularity.store import PACKAGE
from dovetail.module import Module


def foreign_names(known: Mapping[str, Feature], package: Path = PACKAGE) -> list[Line]:
    """Returns the lines that name what a feature defines, in files that are not the feature's."""
    owners = {file: feature for feature in known.values() for file in feature.files}
    everywhere = Counter(name for file in package.rglob("*.py") for name in _defined(file))
    names = {
        name: file
        for file in owners
        for name in _defined(package / file)
        if everywhere[name] == 1  # or else it is not said whose it is
    }
    found = []
    for file in sorted(package.rglob("*.py")):
        own = str(file.relative_to(package))
        if own.partition("/")[0] in (*COMPOSERS, "modularity"):
            continue
        lines = file.read_text().splitlines()
        for number, name in _names(ast.parse("\n".join(lines))):
            home = names.get(name)
            if home is not None and not is_inside(own, own_files(owners[home], known)):
                found.append(Line(own, number, lines[number - 1].strip()))
    return sorted(set(found))


def grown_fields() -> list[str]:
    """Returns the fields of configs that a child of theirs declares too, or that name a child's.

    What a parent hands down to its children is listed in `handed_down.py`. Beside that, a name
    may be shared where it means something else, by its type; and a wrapper has the sizes of what it
    wraps.
    """
    found = set()
    for part in _subclasses(Part):
        config: Any = part.__dict__.get("Config")
        if config is None or not part.__module__.startswith("dovetail."):
            continue
        for child_name, child in _default_children(config):
            for field in _own_fields(config):
                if _is_grown(part, child_name, type(child), field):
                    found.add(f"{part.__module__}:{part.__name__}.{field} (of {child_name})")
    return sorted(found)


def _is_grown(part: Any, child_name: str, child: type[Config[Any]], field: str) -> bool:
    """Says whether a field is the child's matter: by its name, or by its name after the child's."""
    if field.removeprefix(f"{child_name}_") in _own_fields(child) - {field}:
        return True
    if field not in _own_fields(child) or part.__name__ in HANDED_DOWN.get(field, ()):
        return False
    return bool(get_type_hints(part.Config)[field] == get_type_hints(child)[field])


def _default_children(config: Any) -> Iterator[tuple[str, Config[Any]]]:
    for name, field in config.fields().items():
        if isinstance(field.default, Config) and not field.wraps:
            yield name, field.default


def _own_fields(config: Any) -> set[str]:
    """Returns the fields that a config declares beyond what all parts and modules have."""
    return set(config.fields()) - set(Module.Config.fields())


def _subclasses(part: type[Any]) -> set[type[Any]]:
    return {found for child in part.__subclasses__() for found in {child, *_subclasses(child)}}


def _defined(path: Path) -> set[str]:
    """Returns the public classes of a file, or of all files of a folder."""
    files = sorted(path.rglob("*.py")) if path.is_dir() else [path]
    return {
        node.name
        for file in files
        for node in ast.parse(file.read_text()).body
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_")
    }


def _names(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Yields every name that a file uses, with its line.

    Texts that begin as the names of classes do count, too.
    """
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
            yield node.lineno, node.id
        elif isinstance(node, ast.alias):
            yield node.lineno, node.name.rpartition(".")[2]
        elif isinstance(node, ast.Attribute):
            yield node.lineno, node.attr
        elif isinstance(node, ast.Constant) and str(node.value)[:1].isupper():
            yield node.lineno, str(node.value)
