"""One experiment of each family: the sizes of a family share their composition and tiny form."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from dovetail.experiments import experiments
from dovetail.experiments.published import published_sizes

_FIRST_SIZES = {size.family: name for name, size in reversed(published_sizes().items())}
_OWN = [
    name
    for name, found in experiments().items()
    if name not in published_sizes() and not found.variant_of
]

TINY_MODELS = sorted([*_OWN, *_FIRST_SIZES.values()])


def every_tiny_model(*quick: str, among: Sequence[str] = TINY_MODELS) -> Any:
    """Runs a test for one experiment of each family; all but the `quick` wait for `make slow`."""
    later = pytest.mark.sweep
    marked = [name if name in quick else pytest.param(name, marks=later) for name in among]
    return pytest.mark.parametrize("name", marked)
