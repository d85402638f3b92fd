"""Adapted models, merged for transformers and alone for peft: both compute what ours does."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import peft
import pytest
import torch

from dovetail.interop import import_hf
from dovetail.models import families
from dovetail.run import Run
from tests.interop.adapted import adapted_run, logits
from tests.interop.test_merging import REFUSED
from tests.parity.reference import load, write_model

IDS = np.random.default_rng(1).integers(3, 96, (2, 13))


def their_logits(model: Any) -> np.ndarray:
    with torch.no_grad():
        result: np.ndarray = model(torch.tensor(IDS)).logits.numpy()
    return result


def imported(name: str, folder: Path) -> Path:
    write_model(families()[name], str(folder / "hf"))
    import_hf(str(folder / "hf"), folder / "base", progress=False)
    return folder / "base"


@pytest.mark.parametrize("name", families())
def test_transformers_loads_the_merged_model(name: str, tmp_path: Path) -> None:
    run = adapted_run(imported(name, tmp_path), tmp_path / "run")
    Run(run).export_hf(tmp_path / "out", progress=False)
    theirs = their_logits(load(families()[name], str(tmp_path / "out")))
    close(logits(run, IDS), theirs)
    before = their_logits(load(families()[name], str(tmp_path / "hf")))
    assert np.abs(theirs - before).max() > 0.1, "the adapters do something"


@pytest.mark.parametrize("name", sorted(families().keys() - REFUSED.keys()))
def test_peft_loads_the_adapters(name: str, tmp_path: Path) -> None:
    run = adapted_run(imported(name, tmp_path), tmp_path / "run")
    made = Run(run).export_adapter(tmp_path / "out")
    base = load(families()[name], str(tmp_path / "hf"))
    model = peft.PeftModel.from_pretrained(base, str(tmp_path / "out")).eval()
    state = peft.get_peft_model_state_dict(model)
    assert len(state) == made.tensors, "every tensor found its place, and none is missing"
    close(logits(run, IDS), their_logits(model))
    assert model.peft_config["default"].base_model_name_or_path == str(tmp_path / "hf")


def close(ours: np.ndarray, theirs: np.ndarray) -> None:
    """The largest difference, against the largest logit."""
    difference = np.abs(ours - theirs).max()
    assert difference <= 1e-4, difference
    assert difference / np.abs(theirs).max() <= 2e-5, (difference, np.abs(theirs).max())
