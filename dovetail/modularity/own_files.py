"""Which files go with a feature: its own, and those of features that are built on it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from dovetail.features import Feature
from dovetail.modularity.leaks import naming_lines
from dovetail.modularity.store import PACKAGE


def own_files(
    feature: Feature, known: Mapping[str, Feature], package: Path = PACKAGE
) -> tuple[str, ...]:
    """Returns the files that make no sense without a feature, from the package's folder on.

    A feature is built on another where its modifier imports what is the other's own.
    """
    files = dict.fromkeys(feature.files)
    while True:
        others = (one for one in known.values() if one.files[0] not in files)
        built_on = [one for one in others if naming_lines(package, package / one.files[0], files)]
        if not built_on:
            return tuple(files)
        files |= dict.fromkeys(file for one in built_on for file in one.files)
