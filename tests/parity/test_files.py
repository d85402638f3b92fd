"""What transformers wrote is imported, and what is exported is loaded by transformers again."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file

from dovetail.interop import export_hf, import_hf
from dovetail.models import families
from tests.parity.reference import load, write_model

every_family = pytest.mark.parametrize("name", families())


def logits(model: Any) -> np.ndarray:
    ids = np.random.default_rng(1).integers(3, 96, (2, 13))
    with torch.no_grad():
        result: np.ndarray = model(torch.tensor(ids)).logits.numpy()
    return result


@every_family
def test_there_and_back(name: str, tmp_path: Path) -> None:
    family = families()[name]
    state = write_model(family, str(tmp_path / "hf"))
    import_hf(str(tmp_path / "hf"), tmp_path / "run", progress=False)
    export_hf(tmp_path / "run", tmp_path / "out", progress=False)
    written = load_file(tmp_path / "out" / "model.safetensors")
    assert state.keys() == written.keys()
    for key, array in state.items():
        np.testing.assert_array_equal(written[key], array, strict=True)
    before, after = load(family, str(tmp_path / "hf")), load(family, str(tmp_path / "out"))
    np.testing.assert_array_equal(logits(before), logits(after))
    assert type(after).__name__ == family.architecture


@every_family
def test_an_export_without_the_imported_words(name: str, tmp_path: Path) -> None:
    """As of a run that was trained here: config.json is of our own making alone."""
    import shutil

    family = families()[name]
    write_model(family, str(tmp_path / "hf"))
    import_hf(str(tmp_path / "hf"), tmp_path / "run", progress=False)
    shutil.rmtree(tmp_path / "run" / "source")
    export_hf(tmp_path / "run", tmp_path / "out", progress=False)
    before, after = load(family, str(tmp_path / "hf")), load(family, str(tmp_path / "out"))
    np.testing.assert_array_equal(logits(before), logits(after))
