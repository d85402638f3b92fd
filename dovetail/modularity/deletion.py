"""The deletion experiment: how many lines change when a feature is deleted?

A copy of the package loses the code that the feature owns, and the compositions (models,
experiments, file formats) that use it. Then every other file must import, no line may name deleted
code, and every experiment that does not use the feature must resolve to the same config and
parameter specs, defaults included. Each line that must change elsewhere is counted. Lines of
deleted compositions are counted separately: each model that uses the feature has some.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

from dovetail.experiments import experiments
from dovetail.modularity.leaks import (
    COMPOSING,
    SourceLine,
    importing_lines,
    leaking_lines,
    naming_lines,
)
from dovetail.modularity.ownership import delete_code, file_of, owned_components
from dovetail.modularity.tasks import PACKAGE

_COMPONENT = re.compile(r"\bdovetail\.\w+:\w+")


@dataclass(frozen=True)
class Deletion:
    """The result of deleting one feature.

    Attributes:
        feature: its name.
        lines: the lines in other code that must change.
        compositions: the lines that name the feature in compositions deleted with it.
        compared: how many experiments do not use it, and were compared.
        changed: those of them that resolve differently, each with its new hash or the error.
    """

    feature: str
    lines: tuple[SourceLine, ...]
    compositions: tuple[SourceLine, ...]
    compared: int
    changed: Mapping[str, str]

    @property
    def lines_changed(self) -> int:
        """The lines that must change; each changed experiment counts as one."""
        return len(self.lines) + len(self.changed)

    @property
    def composing_files(self) -> list[str]:
        """The files that compose the feature."""
        return sorted({line.file for line in self.compositions})

    def as_json(self) -> dict[str, Any]:
        """Returns it as plain data."""
        return {**asdict(self), "changed": dict(self.changed), "lines_changed": self.lines_changed}

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Deletion:
        """Reads what `as_json` returned."""
        lines, compositions = (
            tuple(SourceLine(**line) for line in values[key]) for key in ("lines", "compositions")
        )
        return cls(values["feature"], lines, compositions, values["compared"], values["changed"])


def delete_feature(
    feature: str,
    owned: Sequence[str],
    texts: Mapping[str, str],
    package: Path = PACKAGE,
    before: Mapping[str, str] | None = None,
) -> Deletion:
    """Deletes one feature from a copy, and compares the experiments that do not use it.

    Args:
        feature: its name.
        owned: the code to delete; see `ownership`.
        texts: the config text of every experiment.
        package: the package's folder.
        before: the config hash of every experiment in the full package; None computes them.
    """
    compared = [name for name, text in texts.items() if not uses(text, owned, package)]
    using = [name for name in texts if name not in compared]
    lines = leaking_lines(package, owned)
    named = [line for line in naming_lines(package, owned) if line not in lines]
    before = before or _hashes(package.parent, compared)
    with copy_without(package, owned) as copy:
        deleted, (errors, after) = delete_broken_compositions(copy, "configs", *compared)
    if errors and not lines:
        lines = [SourceLine(file, 1, error) for file, error in errors.items()]
    after = dict(before) if errors else after
    changed = {name: after[name] for name in compared if before[name] != after[name]}
    compositions = [line for line in named if _composes(line.file, deleted, using)]
    leaks = [*lines, *(line for line in named if line not in compositions)]
    return Deletion(feature, tuple(leaks), tuple(compositions), len(compared), changed)


def delete_package(
    feature: str, outside: str, before: Mapping[str, str], package: Path = PACKAGE
) -> Deletion:
    """Deletes a package that adds a feature from outside: it is not imported.

    Every line of this package that imports it must change. So must every experiment of this
    package that resolves otherwise when the other is not imported.

    Args:
        feature: its name.
        outside: the package that defines it.
        before: the config hash of every experiment of this package, with the other imported.
        package: the folder of this package.
    """
    after = _hashes(package.parent, list(before))
    changed = {name: after[name] for name in before if before[name] != after[name]}
    lines = importing_lines(package, outside)
    return Deletion(feature, tuple(lines), (), len(before), changed)


def _hashes(folder: Path, names: Sequence[str]) -> dict[str, str]:
    snapshot = take_snapshot(folder, "configs", *names)
    if snapshot.import_errors:
        raise ImportError(f"the package cannot be imported: {snapshot.import_errors}")
    return snapshot.hashes


def _composes(file: str, deleted: Sequence[str], using: Sequence[str]) -> bool:
    """Says whether a composition that names a feature is built with it.

    It is if it cannot be imported without the feature, or makes an experiment that uses it. A
    file that only asks for the feature (`if use_alibi:`) is not.
    """
    made = {file_of(_module_of(name)) for name in using if name in experiments()}
    return file in deleted or file in made


def _module_of(experiment: str) -> str:
    make: Any = experiments()[experiment].config
    return str(getattr(make, "func", make).__module__)


def delete_unused(
    experiment: str, text: str, features: Mapping[str, Sequence[str]], package: Path = PACKAGE
) -> str:
    """Deletes every feature that a tiny model does not use; returns the hash of its programs.

    This is stronger than deleting one at a time: only code that the model uses is left.
    """
    unused = [
        code for owned in features.values() if not uses(text, owned, package) for code in owned
    ]
    with copy_without(package, unused) as copy:
        _, (errors, hashes) = delete_broken_compositions(copy, "programs", experiment)
    return "; ".join(errors.values()) or hashes[experiment]


def uses(text: str, owned: Iterable[str], package: Path = PACKAGE) -> bool:
    """Says whether a config text names a component or function of this code.

    Text names them by subpackage: "dovetail.layers:Alibi".
    """
    return not owned_components(package, owned).isdisjoint(_COMPONENT.findall(text))


@contextmanager
def copy_without(package: Path, owned: Iterable[str]) -> Iterator[Path]:
    """Yields a temporary folder with a copy of the package that lacks some code."""
    with tempfile.TemporaryDirectory(prefix="dovetail-") as folder:
        copy = Path(folder) / package.name
        shutil.copytree(package, copy, ignore=shutil.ignore_patterns("__pycache__"))
        delete_code(copy, owned)
        yield copy.parent


class Snapshot(NamedTuple):
    """What `dovetail.modularity.snapshot` prints: import errors by file, or else hashes by name."""

    import_errors: dict[str, str]
    hashes: dict[str, str]


def take_snapshot(folder: Path, what: str, *names: str) -> Snapshot:
    """Runs `dovetail.modularity.snapshot` on the package in a folder."""
    environment = {**os.environ, "PYTHONPATH": str(folder), "JAX_PLATFORMS": "cpu"}
    command = [sys.executable, "-B", "-m", "dovetail.modularity.snapshot", what, *names]
    done = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, check=False
    )
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["no message"])[-1]
        return Snapshot({"the package": last}, dict.fromkeys(names, last))
    return Snapshot(**json.loads(done.stdout.splitlines()[-1]))


def delete_broken_compositions(
    folder: Path, what: str, *names: str
) -> tuple[tuple[str, ...], Snapshot]:
    """Deletes compositions that cannot be imported, until none of them fails.

    Returns the deleted files, and the last snapshot. An import error in any other file is a leak.
    """
    deleted: list[str] = []
    while True:
        snapshot = take_snapshot(folder, what, *names)
        broken = [file for file in snapshot.import_errors if file.partition("/")[0] in COMPOSING]
        broken = [file for file in broken if not file.endswith("__init__.py")]
        if not broken:
            return tuple(deleted), snapshot
        for file in broken:
            (folder / "dovetail" / file).unlink()
        deleted += broken
