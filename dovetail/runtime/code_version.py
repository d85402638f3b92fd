"""Versions of the code of a run: installed packages, and the commits of code under git."""

from __future__ import annotations

import contextlib
import hashlib
import os
import platform
import subprocess
import sys
from collections.abc import Iterable
from importlib import metadata
from pathlib import Path
from typing import Any

_PACKAGES = (
    "dovetail",
    "jax",
    "jaxlib",
    "ml-dtypes",
    "numpy",
    "optax",
    "orbax-checkpoint",
    "tensorstore",
    "tokenizers",
)
_SECONDS = 5  # for git; a network disk may be slow, and a run must not wait for it


def package_versions() -> dict[str, str]:
    """Returns the versions of Python and of the installed packages that results depend on."""
    versions = {"python": platform.python_version()}
    for name in _PACKAGES:
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return versions


def code_versions(modules: Iterable[str]) -> dict[str, dict[str, str]]:
    """Returns the commit of each imported module under git, and a hash of uncommitted changes.

    New Python files in the module's folder are changes, too, unless git ignores them.
    """
    found = {name: _code_version(sys.modules.get(name)) for name in modules}
    return {name: version for name, version in found.items() if version}


def _code_version(module: Any) -> dict[str, str]:
    file = getattr(module, "__file__", None)
    if file is None:
        return {}
    commit = _git(Path(file).parent, "rev-parse", "HEAD")
    if commit is None:
        return {}
    folder = Path(file).parent
    changes = (_git(folder, "diff", "HEAD") or b"") + _new_files(folder)
    version = {"commit": commit.decode().strip()}
    if changes:
        version["diff"] = hashlib.blake2b(changes, digest_size=8).hexdigest()
    return version


def _new_files(folder: Path) -> bytes:
    """Returns the names and contents of the Python files that git does not know."""
    names = _git(folder, "ls-files", "--others", "--exclude-standard", "-z", "--", "*.py") or b""
    found = []
    for name in sorted(names.split(b"\0")[:-1]):
        with contextlib.suppress(OSError):
            found += [name, (folder / os.fsdecode(name)).read_bytes()]
    return b"\0".join(found)


def _git(folder: Path, *arguments: str) -> bytes | None:
    """Returns git's output; None without git, outside of a repository, or if it takes too long."""
    try:
        result = subprocess.run(
            ["git", "-C", str(folder), *arguments],
            capture_output=True,
            check=True,
            timeout=_SECONDS,
            stdin=subprocess.DEVNULL,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return result.stdout
