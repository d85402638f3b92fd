"""The modularity meter from Python: its arguments are checked before anything is measured."""

from __future__ import annotations

from typing import Any

import pytest

from dovetail.config import ConfigError
from dovetail.modularity import meter
from dovetail.modularity.meter import measure_modularity


@pytest.fixture(autouse=True)
def nothing_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(meter, "fill_matrix", _measure)


class MeasuredError(Exception):
    """Says which experiments and features would have been measured."""


def _measure(*names: Any, **options: Any) -> None:
    raise MeasuredError(*names)


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ({"only_experiments": ["tiny-ml"]}, "Did you mean 'tiny-lm'"),
        ({"only_features": ["rop"]}, r"There is no feature 'rop'\. Did you mean 'rope'"),
        ({"imports": ["tests.shape_suffixes"]}, "imports tests.shape_suffixes: it registers no f"),
        ({"jobs": 0}, "jobs: expected 1 to 1,024, got 0"),
    ],
)
def test_a_mistake_is_an_error_that_helps(arguments: dict[str, Any], problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        measure_modularity(**arguments)


@pytest.mark.parametrize(
    ("arguments", "measured"),
    [
        ({}, []),
        ({"only_features": ["rope"]}, ["rope"]),
        ({"imports": ["tests.outside.hyper_connections"]}, ["hyper-connections"]),
        ({"imports": ["tests.outside.hyper_connections"], "only_features": ["moe"]}, ["moe"]),
    ],
)
def test_the_features_of_imported_packages_are_those_measured(
    arguments: dict[str, Any], measured: list[str]
) -> None:
    with pytest.raises(MeasuredError) as asked:
        measure_modularity(["tiny-lm"], **arguments)
    assert [list(names) for names in asked.value.args] == [["tiny-lm"], measured]
