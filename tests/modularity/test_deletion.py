"""The deletion experiment: what remains without a feature, and planted leaks are counted."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from dovetail.config import to_text
from dovetail.experiments import experiments
from dovetail.features import features
from dovetail.modularity.deletion import delete_feature, delete_unused, take_snapshot
from dovetail.modularity.ownership import owned_code
from dovetail.modularity.snapshot import is_hash
from dovetail.modularity.tasks import PACKAGE

NAMES = ("tiny-lm", "gpt2", "mixtral-8x7b")
ALIBI = owned_code(features()["alibi"], features())


def texts() -> dict[str, str]:
    return {name: to_text(experiments()[name].config()) for name in NAMES}


def test_deleting_experts_deletes_the_families_that_have_them() -> None:
    found = delete_feature("moe", owned_code(features()["moe"], features()), texts())
    assert found.lines_changed == 0
    assert found.compared == 2
    assert "models/mixtral.py" in found.composing_files
    assert "models/llama.py" not in found.composing_files


@pytest.mark.sweep
def test_a_planted_leak_counts(tmp_path: Path) -> None:
    package = tmp_path / "dovetail"
    shutil.copytree(PACKAGE, package, ignore=shutil.ignore_patterns("__pycache__"))
    block = package / "layers/stack/blocks.py"
    source = block.read_text()
    line = "from dovetail.layers.positions.alibi import Alibi\n"
    block.write_text(source.replace("from dovetail.module", f"{line}from dovetail.module", 1))
    found = delete_feature("alibi", ALIBI, texts(), package)
    assert [str(line) for line in found.lines] == [
        f"layers/stack/blocks.py:{found.lines[0].number}: {line.strip()}"
    ]
    assert found.lines_changed == 1


@pytest.mark.sweep
def test_a_planted_default_counts(tmp_path: Path) -> None:
    """A leak that no import shows: a value that depends on whether a file exists."""
    package = tmp_path / "dovetail"
    shutil.copytree(PACKAGE, package, ignore=shutil.ignore_patterns("__pycache__"))
    laptop = package / "experiments/laptop.py"
    planted = 'bool(__import__("importlib.util").util.find_spec("dovetail.layers.positions.alibi"))'
    laptop.write_text(laptop.read_text().replace("tied=True", f"tied={planted}"))
    found = delete_feature("alibi", ALIBI, texts(), package)
    assert list(found.changed) == ["tiny-lm"]
    assert [line.file for line in found.lines] == ["experiments/laptop.py"], "it names the module"


def planted_copy(tmp_path: Path, file: str, old: str, new: str) -> Path:
    """Returns a copy of the package with one text in a file changed."""
    package = tmp_path / "dovetail"
    shutil.copytree(PACKAGE, package, ignore=shutil.ignore_patterns("__pycache__"))
    source = (package / file).read_text()
    assert old in source
    (package / file).write_text(source.replace(old, new, 1))
    return package


# By its file: asking the import system would import subpackages above the current one.
HAS_ALIBI = (
    '__import__("os").path.exists('
    '__import__("sys").modules["dovetail"].__path__[0] + "/layers/positions/alibi.py")'
)


@pytest.mark.sweep
@pytest.mark.parametrize(
    ("file", "old", "new"),
    [
        ("layers/norms.py", "epsilon: float = 1e-6", f"epsilon: float = 1e-6 + {HAS_ALIBI}"),
        ("module/initializers.py", "scale: float = 1.0", f"scale: float = 1.0 + {HAS_ALIBI}"),
    ],
)
def test_a_planted_class_default_counts(tmp_path: Path, file: str, old: str, new: str) -> None:
    """Texts leave defaults out; what is compared has them, and the initializers."""
    package = planted_copy(tmp_path, file, old, new)
    found = delete_feature("alibi", ALIBI, texts(), package)
    assert "tiny-lm" in found.changed


@pytest.mark.sweep
def test_families_that_only_ask_for_a_feature_count(tmp_path: Path) -> None:
    asks = (
        "\n\ndef _with(config, use_alibi=False):\n    if use_alibi:\n"
        "        from dovetail.layers.positions.alibi import Alibi\n\n"
        "        return Alibi.Config()\n    return config\n"
    )
    package = planted_copy(tmp_path, "models/llama.py", "FAMILY = ", f"{asks}\n\nFAMILY = ")
    found = delete_feature("alibi", ALIBI, texts(), package)
    assert {line.file for line in found.lines} == {"models/llama.py"}
    assert found.lines_changed == 2


@pytest.mark.sweep
def test_a_planted_computation_is_detected(tmp_path: Path) -> None:
    """Neither text nor specs show it: the program does."""
    package = planted_copy(
        tmp_path,
        "layers/decoder.py",
        "return self.norm(",
        f"return (2.0 if {HAS_ALIBI} else 1.0) * self.norm(",
    )
    text = to_text(experiments()["tiny-lm"].tiny())
    files = {"alibi": ALIBI}
    alone = delete_unused("tiny-lm", text, files, package)
    before = take_snapshot(package.parent, "programs", "tiny-lm").hashes["tiny-lm"]
    assert is_hash(alone)
    assert is_hash(before)
    assert alone != before


@pytest.mark.sweep
def test_a_tiny_model_computes_the_same_with_all_unused_features_deleted() -> None:
    text = to_text(experiments()["tiny-lm"].tiny())
    files = {name: owned_code(feature, features()) for name, feature in features().items()}
    alone = delete_unused("tiny-lm", text, files)
    assert alone == take_snapshot(PACKAGE.parent, "programs", "tiny-lm").hashes["tiny-lm"]
