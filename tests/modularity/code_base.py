"""Writes small code bases to scan."""

import textwrap
from pathlib import Path


def write_files(root: Path, files: dict[str, str]) -> Path:
    """Writes files, by their relative paths, and returns the folder."""
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(textwrap.dedent(text).lstrip("\n"))
    return root
