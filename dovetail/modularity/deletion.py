"""Lines changed, measured by taking a feature away: what else must go for the rest to stand?

A copy of the package loses the feature's own files, and the compositions that are written with it.
Then every other file must import, and every experiment that does not use the feature must resolve
to the same text. Whatever must go elsewhere for that is counted, line by line.
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
from typing import Any

from dovetail.modularity.leaks import COMPOSERS, Line, leaking_lines
from dovetail.modularity.probe import hashed
from dovetail.modularity.store import PACKAGE


@dataclass(frozen=True)
class Deletion:
    """What taking a feature away came to.

    Attributes:
        feature: its name.
        lines: the lines in other files that must go.
        users: compositions that are written with the feature, and went with it.
        kept: how many experiments do not use it, and were compared.
        changed: those of them that resolve or compute otherwise, each with what was found.
    """

    feature: str
    lines: tuple[Line, ...]
    users: tuple[str, ...]
    kept: int
    changed: Mapping[str, str]

    @property
    def count(self) -> int:
        """The lines that must change; what changes without our knowing the line counts as one."""
        return len(self.lines) + len(self.changed)


def without_feature(
    feature: str, files: Sequence[str], texts: Mapping[str, str], package: Path = PACKAGE
) -> Deletion:
    """Takes one feature away, and compares what does not use it.

    Args:
        feature: its name.
        files: what belongs to it alone, from the package's folder on.
        texts: what every experiment resolves to.
        package: the package's folder.
    """
    kept = [name for name, text in texts.items() if not uses(text, files)]
    lines = tuple(leaking_lines(package, files))
    with scratch_copy(package, files) as copy:
        users, broken = _settle(copy)
        if broken:
            lines = lines or tuple(Line(file, 1, error) for file, error in broken.items())
            return Deletion(feature, lines, users, len(kept), {})
        after = probe(copy, "texts", *kept)
    changed = {name: after[name] for name in kept if hashed(texts[name]) != after[name]}
    return Deletion(feature, lines, users, len(kept), changed)


def without_all_unused(
    experiment: str, text: str, features: Mapping[str, Sequence[str]], package: Path = PACKAGE
) -> str:
    """Takes away every feature that a tiny form does not use; returns what it computes then.

    This is more than taking each away by itself: whatever the form computes, it computes with
    nothing there but what it names.
    """
    gone = [file for files in features.values() if not uses(text, files) for file in files]
    with scratch_copy(package, gone) as copy:
        _settle(copy)
        return str(probe(copy, "programs", experiment)[experiment])


def uses(text: str, files: Iterable[str]) -> bool:
    """Says whether a resolved config names a part of one of these files."""
    modules = (
        f"dovetail.{file.removesuffix('.py').replace('/', '.').rstrip('.')}" for file in files
    )
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


def probe(folder: Path, what: str, *names: str) -> dict[str, str]:
    """Asks the package in a folder; see `dovetail.modularity.probe`."""
    environment = {**os.environ, "PYTHONPATH": str(folder), "JAX_PLATFORMS": "cpu"}
    command = [sys.executable, "-B", "-m", "dovetail.modularity.probe", what, *names]
    done = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, check=False
    )
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["no message"])[-1]
        return dict.fromkeys(names or ("the package",), last)
    found: dict[str, str] = json.loads(done.stdout.splitlines()[-1])
    return found


def _settle(folder: Path) -> tuple[tuple[str, ...], dict[str, str]]:
    """Takes compositions away that cannot be imported, until the rest stands or does not."""
    users: list[str] = []
    while True:
        failed = probe(folder, "imports")
        composed = [file for file in failed if file.partition("/")[0] in COMPOSERS]
        composed = [file for file in composed if not file.endswith("__init__.py")]
        if not composed:
            return tuple(users), failed
        for file in composed:
            (folder / "dovetail" / file).unlink()
        users += composed


def as_json(deletion: Deletion) -> dict[str, Any]:
    """Returns it as plain data."""
    return {
        "feature": deletion.feature,
        "lines": [str(line) for line in deletion.lines],
        "users": list(deletion.users),
        "kept": deletion.kept,
        "changed": dict(deletion.changed),
        "count": deletion.count,
    }
