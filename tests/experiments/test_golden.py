"""Golden texts: what an experiment resolves to changes on purpose, or not at all. One a family.

`make golden` rewrites them; the difference is then there to be read before it is committed.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from dovetail.config import from_text, to_text
from dovetail.experiments import find_experiment
from tests.experiments.forms import FORMS

FOLDER = Path(__file__).parent / "golden"


@pytest.mark.parametrize("name", FORMS)
def test_an_experiment_resolves_to_its_golden_text(name: str) -> None:
    config = find_experiment(name).config()
    file, text = FOLDER / f"{name}.txt", to_text(config)
    if os.environ.get("DOVETAIL_REWRITE_GOLDEN"):
        file.write_text(text)
    assert file.is_file(), "a new family: run `make golden`, and look at what it wrote"
    assert text == file.read_text()
    assert from_text(text) == config


def test_no_golden_text_is_left_over() -> None:
    assert {file.stem for file in FOLDER.iterdir()} == set(FORMS)
