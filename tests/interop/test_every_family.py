"""Every family's mapping serves both directions: tensors come back bit by bit, and so does text."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from dovetail.interop import import_hf, matching_family
from dovetail.interop.family_match import differences
from dovetail.models import families
from dovetail.run import Run
from tests.interop.files import BFLOAT16, random_tensors, write_model
from tests.interop.test_round_trip import assert_same, read_all


@pytest.mark.parametrize("name", families())
def test_there_and_back(name: str, tmp_path: Path) -> None:
    family = families()[name]
    hf_config = {**family.tiny(), "model_type": family.model_type}
    arrays = random_tensors(family, hf_config, BFLOAT16)
    write_model(tmp_path / "hf", hf_config, arrays, shards=2)
    assert import_hf(str(tmp_path / "hf"), tmp_path / "run", progress=False).family == name
    made = Run(tmp_path / "run").export_hf(tmp_path / "out", shard_bytes=20_000, progress=False)
    assert made.family == name
    assert_same(arrays, read_all(tmp_path / "out"))
    written = json.loads((tmp_path / "out" / "config.json").read_text())
    assert written["architectures"] == [family.architecture]
    assert family.from_hf(written) == family.from_hf(hf_config)


@pytest.mark.parametrize("name", families())
def test_a_family_expresses_its_own_models(name: str) -> None:
    family = families()[name]
    config = family.from_hf(family.tiny())
    assert matching_family(config, first=family.model_type)[0].name == name
    # Where another says it too, it says the same model.
    other, hf_config = matching_family(config)
    assert not differences(config, other.from_hf(hf_config))
