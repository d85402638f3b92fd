"""The files of a code base: sources, tests and configs."""

from __future__ import annotations

import ast
import os
import re
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from dovetail.config import ConfigError

CONFIG_SUFFIXES = (".yaml", ".yml", ".toml", ".gin")
_SKIPPED = {"__pycache__", "node_modules", "site-packages", "build", "dist", "venv", "third_party"}
_TEST_FOLDERS = {"test", "tests", "testing", "unit_tests", "integration_tests"}


@dataclass(frozen=True)
class Source:
    """One file: its path relative to the code base, and its text."""

    name: str
    text: str

    def parse(self) -> ast.Module:
        """Parses Python; raises SyntaxError or ValueError if this Python cannot."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about the scanned code, such as invalid escapes
            return ast.parse(self.text)


def files(root: Path, tests: bool = False) -> list[Path]:
    """Lists the Python and config files of a code base, in order; tests only if asked for.

    Raises:
        ConfigError: if the path does not exist, or holds no Python.
    """
    if not root.exists():
        raise ConfigError(f"{root} does not exist; give the folder of a Python code base")
    paths = [root] if root.is_file() else sorted(_walk(root))
    kept = [path for path in paths if tests or not is_test(relative(path, root))]
    if not any(path.suffix == ".py" for path in kept):
        only_tests = any(path.suffix == ".py" for path in paths)
        reason = "only tests (--tests counts them)" if only_tests else "no Python file"
        raise ConfigError(f"{root} holds {reason}; give the folder of a Python code base")
    return kept


def read(path: Path, root: Path) -> Source:
    """Reads a file; bytes that are not UTF-8, as in strings and comments, are replaced."""
    return Source(relative(path, root), path.read_text(encoding="utf-8-sig", errors="replace"))


def relative(path: Path, root: Path) -> str:
    """Returns the path as a report shows it."""
    return path.relative_to(root if root.is_dir() else root.parent).as_posix()


def is_test(name: str) -> bool:
    """Says whether a relative path is a test by the usual names."""
    path = PurePosixPath(name)
    stem = path.stem
    return (
        not _TEST_FOLDERS.isdisjoint(path.parts[:-1])
        or stem in ("conftest", "test_utils")
        or stem.startswith("test_")
        or stem.endswith(("_test", "_tests"))
    )


def _walk(root: Path) -> Iterator[Path]:
    for folder, inner, names in os.walk(root):
        inner[:] = [name for name in inner if name not in _SKIPPED and not name.startswith(".")]
        for name in names:
            path = Path(folder, name)
            if path.suffix in (".py", *CONFIG_SUFFIXES) and path.is_file():
                yield path


# No parser of these formats reports the line of a key, so a line that begins with a key is one.
# Lines in a block of text may be mistaken for keys.
_KEY = {
    ".yaml": re.compile(
        r"(?P<margin>\s*)(?:- +)?['\"]?(?P<key>[A-Za-z_][\w./-]*)['\"]?\s*:(?:\s|$)"
    ),
    ".toml": re.compile(
        r"(?P<margin>\s*)(?:\[+)?['\"]?(?P<key>[A-Za-z_][\w.-]*)['\"]?\s*(?:=|\]+)"
    ),
    ".gin": re.compile(r"(?P<margin>\s*)(?P<key>[A-Za-z_][\w./@-]*)\s*="),
}
_KEY[".yml"] = _KEY[".yaml"]


def config_keys(source: Source) -> list[tuple[str, int, bool]]:
    """Returns every key of a config file, with its line and whether it is at the top level."""
    pattern = _KEY[PurePosixPath(source.name).suffix]
    found = []
    for number, line in enumerate(source.text.splitlines(), start=1):
        if key := pattern.match(line):
            found.append((key["key"], number, not key["margin"]))
    return found
