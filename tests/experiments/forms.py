"""One experiment of each family: the sizes of a family share their composition and tiny form."""

from __future__ import annotations

from typing import Any

import pytest

from dovetail.experiments import experiments
from dovetail.experiments.published import published_sizes

_FIRST_SIZES = {size.family: name for name, size in reversed(published_sizes().items())}
_OWN = [name for name in experiments() if name not in published_sizes()]

FORMS = sorted([*_OWN, *_FIRST_SIZES.values()])

# In the default tests: small and dense, sparse, latent. The others are slow.
_QUICK = {"tiny-lm", "qwen3-30b-a3b", "deepseek-v3"}


def every_form() -> Any:
    """Runs a test for one experiment of each family, most of them among the slow tests."""
    marked = [
        name if name in _QUICK else pytest.param(name, marks=pytest.mark.slow) for name in FORMS
    ]
    return pytest.mark.parametrize("name", marked)
