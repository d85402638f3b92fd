"""Which code a feature owns, and how to delete it.

Code is named relative to the package, as `Feature.files` does: a folder ("layers/moe/"), a file
("layers/positions/alibi.py") or a definition in a file ("layers/norms.py:LayerNorm").
"""

from __future__ import annotations

import ast
import functools
import shutil
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path

from dovetail.config import to_text
from dovetail.experiments import ExperimentEntry, experiments
from dovetail.features import Feature, features
from dovetail.modularity.tasks import PACKAGE


def owned_code(feature: Feature, by_name: Mapping[str, Feature]) -> tuple[str, ...]:
    """Returns the code of this package that only a feature and those that build on it need."""
    names = [feature.name]
    for name in names:
        names += [one.name for one in by_name.values() if name in one.builds_on]
    own = [by_name[name] for name in names if by_name[name].definition]
    return tuple(dict.fromkeys(code for one in own for code in (one.definition, *one.files)))


def package_of(feature: Feature) -> str:
    """Returns the package that defines a feature."""
    return feature.unchecked.__module__.partition(".")[0]


def features_of(packages: Iterable[str]) -> list[str]:
    """Returns the names of the features that these packages or modules, or submodules, define."""
    roots = tuple(f"{package}." for package in packages)
    modules = {name: f"{one.unchecked.__module__}." for name, one in features().items()}
    return [name for name, module in modules.items() if module.startswith(roots)]


def own_experiments() -> dict[str, ExperimentEntry]:
    """Returns the experiments of this package, without those of imported packages."""
    return {name: one for name, one in experiments().items() if _is_own(one.source)}


def _is_own(source: str) -> bool:
    return source.partition(".")[0] == PACKAGE.name or Path(source).is_relative_to(PACKAGE)


def configs_without(owned: Collection[str]) -> dict[str, str]:
    """Returns the config text of our experiments but the variants made by features of this code."""
    by_name = features()

    def is_variant_by(one: ExperimentEntry) -> bool:
        return any(by_name[change.partition(":")[0]].definition in owned for change in one.changes)

    own = own_experiments()
    return {name: text for name, text in _texts().items() if not is_variant_by(own[name])}


@functools.cache
def _texts() -> dict[str, str]:
    return {name: to_text(one.config()) for name, one in own_experiments().items()}


def dotted_name(code: str, package: str = "dovetail") -> str:
    """Returns the module of a file or folder, or the dotted name of a definition."""
    path, _, name = code.partition(":")
    module = f"{package}.{path.removesuffix('.py').rstrip('/').replace('/', '.')}"
    return f"{module}.{name}" if name else module


def file_of(module: str) -> str:
    """Returns the file of a module, relative to the package."""
    return f"{module.partition('.')[2].replace('.', '/')}.py"


def is_inside(file: str, owned: Iterable[str]) -> bool:
    """Says whether a complete file is owned, by its own path or by its folder."""
    return any(file == one or (one.endswith("/") and file.startswith(one)) for one in owned)


def owned_lines(source: str, file: str, owned: Iterable[str]) -> set[int]:
    """Returns the lines of the definitions that are owned in a file."""
    numbers = definitions(source)
    return {
        number
        for code in owned
        if code.startswith(f"{file}:")
        for number in numbers.get(code.partition(":")[2], ())
    }


def owned_components(package: Path, owned: Iterable[str]) -> set[str]:
    """Returns the owned definitions as config text names them: "dovetail.layers:LayerNorm"."""
    components = set()
    for code in owned:
        file, _, name = code.partition(":")
        path = package / file
        files = path.rglob("*.py") if path.is_dir() else [path] if path.is_file() else []
        names = [name] if name else [one for each in files for one in definitions(each.read_text())]
        components |= {f"dovetail.{file.partition('/')[0]}:{one}" for one in names}
    return components


@functools.lru_cache(maxsize=1024)
def definitions(source: str) -> dict[str, range]:
    """Returns the lines of every top-level class and function of a file, decorators included."""
    return {
        node.name: range(
            min(part.lineno for part in (node, *node.decorator_list)), (node.end_lineno or 0) + 1
        )
        for node in ast.parse(source).body
        if isinstance(node, ast.ClassDef | ast.FunctionDef)
    }


def with_emptied_files(package: Path, owned: Iterable[str]) -> tuple[str, ...]:
    """Replaces owned definitions by their file, if no other public one is in it."""
    names: dict[str, set[str]] = {}
    for code in owned:
        file, _, name = code.partition(":")
        names.setdefault(file, set()).add(name)

    def is_emptied(file: str) -> bool:
        path = package / file
        left = definitions(path.read_text()).keys() - names[file] if path.is_file() else set()
        return not any(name[0] != "_" for name in left)

    found = (
        code.partition(":")[0] if ":" in code and is_emptied(code.partition(":")[0]) else code
        for code in owned
    )
    return tuple(dict.fromkeys(found))


def delete_code(package: Path, owned: Iterable[str]) -> None:
    """Deletes code from a package; missing code is skipped."""
    owned = with_emptied_files(package, owned)
    for code in owned:
        file, _, name = code.partition(":")
        assert file, "this would delete the whole package"
        path = package / file
        if path.is_dir():
            shutil.rmtree(path)
        elif not name:
            path.unlink(missing_ok=True)
        elif path.is_file():
            source = path.read_text()
            deleted = owned_lines(source, file, [code])
            lines = enumerate(source.splitlines(keepends=True), start=1)
            path.write_text("".join(line for number, line in lines if number not in deleted))
