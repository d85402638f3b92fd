"""Variants of the published sizes: for each family to which the features apply."""

from __future__ import annotations

import functools

import pytest

from dovetail.config import apply_modifier
from dovetail.experiments import experiments
from dovetail.experiments.published import published_sizes
from dovetail.experiments.variants import VARIANTS
from dovetail.features import NotApplicable

FIRST_SIZES = {size.family: name for name, size in reversed(published_sizes().items())}


@pytest.mark.parametrize("suffix", VARIANTS)
@pytest.mark.parametrize("family", FIRST_SIZES)
def test_a_family_is_excluded_only_if_a_feature_does_not_apply(family: str, suffix: str) -> None:
    name, variant = FIRST_SIZES[family], VARIANTS[suffix]
    if family not in variant.excluded:
        found = experiments()[f"{name}-{suffix}"]
        assert found.variant_of == name
        assert found.config() != experiments()[name].config()
        assert found.tiny() != experiments()[name].tiny()
        return
    assert f"{name}-{suffix}" not in experiments()
    with pytest.raises(NotApplicable):
        functools.reduce(apply_modifier, variant.changes, experiments()[name].config())


def test_there_are_several_hundred_experiments() -> None:
    assert len(experiments()) > 250
