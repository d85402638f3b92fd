"""Golden texts: what an experiment resolves to changes on purpose, or not at all. One a family.

`make golden` rewrites them; the difference is then there to be read before it is committed.
"""

from __future__ import annotations

import os

import pytest

from dovetail.config import from_text, to_text
from dovetail.experiments import find_experiment
from tests.experiments.golden_texts import FOLDER, families, golden_text
from tests.experiments.tiny_models import TINY_MODELS


@pytest.mark.parametrize("family", families())
def test_a_familys_experiments_resolve_to_their_golden_text(family: str) -> None:
    file, text = FOLDER / f"{family}.txt", golden_text(families()[family])
    if os.environ.get("DOVETAIL_REWRITE_GOLDEN"):
        file.write_text(text)
    assert file.is_file(), "a new family: run `make golden`, and look at what it wrote"
    assert text == file.read_text()


@pytest.mark.parametrize("name", TINY_MODELS)
def test_text_reads_back(name: str) -> None:
    config = find_experiment(name).config()
    assert from_text(to_text(config)) == config


def test_no_golden_text_is_left_over() -> None:
    assert {file.stem for file in FOLDER.iterdir()} == set(families())
