"""The published sizes of every model family of the package, as experiments."""

from __future__ import annotations

from pathlib import Path

from dovetail.experiments.size_files import PublishedSize, register_sizes

_SIZES = register_sizes(Path(__file__).parent / "sizes")


def published_sizes() -> dict[str, PublishedSize]:
    """Returns every published size of the package by name."""
    return _SIZES
