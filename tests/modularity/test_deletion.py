"""Taking features away: what stands without them, and that a leak is counted."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from dovetail.config import to_text
from dovetail.experiments import experiments
from dovetail.features import features
from dovetail.modularity.deletion import probe, without_all_unused, without_feature
from dovetail.modularity.own_files import own_files
from dovetail.modularity.store import PACKAGE

NAMES = ("tiny-lm", "gpt2", "mixtral-8x7b")


def texts() -> dict[str, str]:
    return {name: to_text(experiments()[name].config()) for name in NAMES}


def test_experts_go_with_the_families_that_have_them() -> None:
    found = without_feature("moe", own_files(features()["moe"], features()), texts())
    assert found.count == 0
    assert found.kept == 2
    assert "models/mixtral.py" in found.users
    assert "models/llama.py" not in found.users


@pytest.mark.sweep
def test_a_planted_leak_counts(tmp_path: Path) -> None:
    package = tmp_path / "dovetail"
    shutil.copytree(PACKAGE, package, ignore=shutil.ignore_patterns("__pycache__"))
    block = package / "layers/stack/transformer.py"
    source = block.read_text()
    line = "from dovetail.layers.positions.alibi import Alibi\n"
    block.write_text(source.replace("from dovetail.module", f"{line}from dovetail.module", 1))
    found = without_feature("alibi", features()["alibi"].files, texts(), package)
    assert [str(line) for line in found.lines] == [
        f"layers/stack/transformer.py:{found.lines[0].number}: {line.strip()}"
    ]
    assert found.count == 1


@pytest.mark.sweep
def test_a_planted_default_counts(tmp_path: Path) -> None:
    """A leak that no import shows: an experiment resolves otherwise where a file is missing."""
    package = tmp_path / "dovetail"
    shutil.copytree(PACKAGE, package, ignore=shutil.ignore_patterns("__pycache__"))
    laptop = package / "experiments/laptop.py"
    planted = 'bool(__import__("importlib.util").util.find_spec("dovetail.layers.positions.alibi"))'
    laptop.write_text(laptop.read_text().replace("tied=True", f"tied={planted}"))
    found = without_feature("alibi", features()["alibi"].files, texts(), package)
    assert list(found.changed) == ["tiny-lm"]
    assert found.count == 1


@pytest.mark.sweep
def test_a_form_computes_the_same_with_nothing_but_what_it_names() -> None:
    text = to_text(experiments()["tiny-lm"].tiny())
    files = {name: own_files(feature, features()) for name, feature in features().items()}
    alone = without_all_unused("tiny-lm", text, files)
    assert alone == probe(PACKAGE.parent, "programs", "tiny-lm")["tiny-lm"]
