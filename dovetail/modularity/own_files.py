"""Which files go with a feature, and which experiments do without them."""

from __future__ import annotations

import functools
from collections.abc import Collection, Mapping

from dovetail.config import to_text
from dovetail.experiments import Experiment, experiments
from dovetail.features import Feature, features


def own_files(feature: Feature, known: Mapping[str, Feature]) -> tuple[str, ...]:
    """Returns the files that make no sense without a feature: its own, and what builds on it."""
    names = [feature.name]
    for name in names:
        names += [one.name for one in known.values() if name in one.builds_on]
    return tuple(dict.fromkeys(file for name in names for file in known[name].files))


def texts_without(files: Collection[str]) -> dict[str, str]:
    """Returns what experiments resolve to, but for variants by a feature of these files."""
    known = features()

    def is_made_of(one: Experiment) -> bool:
        names = (change.partition(":")[0] for change in one.changes)
        return any(file in files for name in names for file in known[name].files[:1])

    return {name: text for name, text in _texts().items() if not is_made_of(experiments()[name])}


@functools.cache
def _texts() -> dict[str, str]:
    return {name: to_text(found.config()) for name, found in experiments().items()}
