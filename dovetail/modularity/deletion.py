"""Lines changed, measured by taking a feature away: what else must go for the rest to stand?

A copy of the package loses the feature's own files, and the compositions that are written with it.
Then every other file must import, no line may name what is gone, and every experiment that does not
use the feature must resolve to the same, defaults and specs of parameters included. Whatever must
go elsewhere for that is counted, line by line. The lines of compositions that went are counted
apart: there is one composition for each model that uses the feature.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from dovetail.experiments import experiments
from dovetail.modularity.leaks import COMPOSERS, Line, all_naming_lines, leaking_lines
from dovetail.modularity.paths import file_of, module_of
from dovetail.modularity.store import PACKAGE


@dataclass(frozen=True)
class Deletion:
    """What taking a feature away came to.

    Attributes:
        feature: its name.
        lines: the lines in other files that must go.
        composed: the lines that name the feature in compositions which went with it.
        kept: how many experiments do not use it, and were compared.
        changed: those of them that resolve or compute otherwise, each with what was found.
    """

    feature: str
    lines: tuple[Line, ...]
    composed: tuple[Line, ...]
    kept: int
    changed: Mapping[str, str]

    @property
    def count(self) -> int:
        """The lines that must change; what changes without our knowing the line counts as one."""
        return len(self.lines) + len(self.changed)

    @property
    def users(self) -> list[str]:
        """The files that are written with the feature."""
        return sorted({line.file for line in self.composed})


def without_feature(
    feature: str,
    files: Sequence[str],
    texts: Mapping[str, str],
    package: Path = PACKAGE,
    before: Mapping[str, str] | None = None,
) -> Deletion:
    """Takes one feature away, and compares what does not use it.

    Args:
        feature: its name.
        files: what belongs to it alone, from the package's folder on.
        texts: what every experiment resolves to.
        package: the package's folder.
        before: what every experiment is in whole, in short; None: it is found out.
    """
    kept = [name for name, text in texts.items() if not uses(text, files)]
    using = [name for name in texts if name not in kept]
    lines = leaking_lines(package, files)
    named = [line for line in all_naming_lines(package, files) if line not in lines]
    before = before or probe(package.parent, "wholes", *kept).found
    with scratch_copy(package, files) as copy:
        users, (broken, found) = settle(copy, "wholes", *kept)
    if broken and not lines:
        lines = [Line(file, 1, error) for file, error in broken.items()]
    after = before if broken else found
    changed = {name: after[name] for name in kept if before[name] != after[name]}
    composed = [line for line in named if _is_used(line.file, users, using)]
    leaks = [*lines, *(line for line in named if line not in composed)]
    return Deletion(feature, tuple(leaks), tuple(composed), len(kept), changed)


def _is_used(file: str, users: Sequence[str], using: Sequence[str]) -> bool:
    """Says whether a composition that names a feature is written with it.

    It is where it cannot be imported without, or makes an experiment that uses the feature. One
    that only asks for it (`if use_alibi:`) is not.
    """
    made = {file_of(_made_by(name)) for name in using if name in experiments()}
    return file in users or file in made


def _made_by(experiment: str) -> str:
    make: Any = experiments()[experiment].make
    return str(getattr(make, "func", make).__module__)


def without_all_unused(
    experiment: str, text: str, features: Mapping[str, Sequence[str]], package: Path = PACKAGE
) -> str:
    """Takes away every feature that a tiny form does not use; returns what it computes then.

    This is more than taking each away by itself: whatever the form computes, it computes with
    nothing there but what it names.
    """
    gone = [file for files in features.values() if not uses(text, files) for file in files]
    with scratch_copy(package, gone) as copy:
        _, (broken, found) = settle(copy, "programs", experiment)
    return "; ".join(broken.values()) or found[experiment]


def uses(text: str, files: Iterable[str]) -> bool:
    """Says whether a resolved config names a part of one of these files."""
    modules = (module_of(file) for file in files)
    return any(f"{module}:" in text or f"{module}." in text for module in modules)


@contextmanager
def scratch_copy(package: Path, gone: Iterable[str]) -> Iterator[Path]:
    """Makes a folder with a copy of the package that lacks some files."""
    with tempfile.TemporaryDirectory(prefix="dovetail-") as folder:
        copy = Path(folder) / package.name
        shutil.copytree(package, copy, ignore=shutil.ignore_patterns("__pycache__"))
        for name in gone:
            path = copy / name
            if path.is_dir():
                shutil.rmtree(path)
            else:
                path.unlink(missing_ok=True)
        yield copy.parent


class Answer(NamedTuple):
    """What a package said: which files cannot be imported, each with the error; else what it is."""

    failed: dict[str, str]
    found: dict[str, str]


def probe(folder: Path, what: str, *names: str) -> Answer:
    """Asks the package in a folder; see `dovetail.modularity.probe`."""
    environment = {**os.environ, "PYTHONPATH": str(folder), "JAX_PLATFORMS": "cpu"}
    command = [sys.executable, "-B", "-m", "dovetail.modularity.probe", what, *names]
    done = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, check=False
    )
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["no message"])[-1]
        return Answer({"the package": last}, dict.fromkeys(names, last))
    return Answer(**json.loads(done.stdout.splitlines()[-1]))


def settle(folder: Path, what: str, *names: str) -> tuple[tuple[str, ...], Answer]:
    """Takes compositions away that cannot be imported, until the rest stands or does not.

    A feature that builds on what is gone went with it; any other that names it is a leak. Returns
    what was taken away, and what the rest says then.
    """
    users: list[str] = []
    while True:
        answer = probe(folder, what, *names)
        composed = [file for file in answer.failed if file.partition("/")[0] in COMPOSERS]
        composed = [file for file in composed if not file.endswith("__init__.py")]
        if not composed:
            return tuple(users), answer
        for file in composed:
            (folder / "dovetail" / file).unlink()
        users += composed


def as_json(deletion: Deletion) -> dict[str, Any]:
    """Returns it as plain data."""
    return {
        "feature": deletion.feature,
        "lines": [str(line) for line in deletion.lines],
        "composed": [str(line) for line in deletion.composed],
        "kept": deletion.kept,
        "changed": dict(deletion.changed),
        "count": deletion.count,
    }
