"""Which files go with a feature, and which experiments do without them."""

from __future__ import annotations

import functools
from collections.abc import Collection, Mapping
from pathlib import Path

from dovetail.config import to_text
from dovetail.experiments import Experiment, experiments
from dovetail.features import Feature, features
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


def texts_without(files: Collection[str]) -> dict[str, str]:
    """Returns what experiments resolve to, but for variants by a feature of these files."""
    known = features()

    def is_made_of(one: Experiment) -> bool:
        names = (change.partition(":")[0] for change in one.changes)
        return any(known[name].files[0] in files for name in names)

    return {name: text for name, text in _texts().items() if not is_made_of(experiments()[name])}


@functools.cache
def _texts() -> dict[str, str]:
    return {name: to_text(found.config()) for name, found in experiments().items()}
