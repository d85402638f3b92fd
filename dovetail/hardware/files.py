"""This machine's files: where caches live, and how a file is written whole."""

from __future__ import annotations

import os
from pathlib import Path


def user_cache_folder() -> Path:
    """Returns Dovetail's folder among the user's caches; it need not exist."""
    root = Path(os.environ.get("XDG_CACHE_HOME", ""))
    if not root.is_absolute():  # the XDG rules say to pass over a relative one
        root = Path.home() / ".cache"
    return root / "dovetail"


def write_whole(path: Path, text: str) -> None:
    """Writes a file so that a reader sees the old text or the new one, never a part."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        with temporary.open("w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
