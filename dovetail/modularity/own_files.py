"""Which files go with a feature: its own, and those of features that are built on it."""

from __future__ import annotations

from collections.abc import Mapping

from dovetail.features import Feature


def own_files(feature: Feature, known: Mapping[str, Feature]) -> tuple[str, ...]:
    """Returns the files that make no sense without a feature, from the package's folder on."""
    files = dict.fromkeys(feature.files)
    while True:
        parts = tuple(_module(file) for file in files)
        built_on = [
            other
            for other in known.values()
            if any(need.startswith(parts) for need in other.needs) and other.files[0] not in files
        ]
        if not built_on:
            return tuple(files)
        files |= dict.fromkeys(file for other in built_on for file in other.files)


def _module(file: str) -> str:
    """Returns how the parts of a file begin, in the way that needs are written."""
    module = f"dovetail.{file.removesuffix('.py').rstrip('/').replace('/', '.')}"
    return module if file.endswith("/") else f"{module}:"
