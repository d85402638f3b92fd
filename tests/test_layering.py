"""The layering is enforced: an import against the order of the subpackages is found anywhere."""

import ast
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent


def run_tool(folder: Path, name: str, *arguments: str) -> str:
    """Runs a linter of this environment in a folder and returns what it prints."""
    command = [str(Path(sys.executable).parent / name), *arguments]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False).stdout


@pytest.fixture
def package(tmp_path: Path) -> Path:
    """A package of a few subpackages in the right order, under our settings."""
    (tmp_path / "pyproject.toml").write_text((ROOT / "pyproject.toml").read_text())
    for name, source in {
        "": "",
        "utils": "",
        "hardware": "",
        "config": "import json\n",
        "module": "import jax\nimport dovetail.config\n",
        "trainer": "import dovetail.module\n",
    }.items():
        folder = tmp_path / "dovetail" / name
        folder.mkdir()
        (folder / "__init__.py").write_text(source)
    return tmp_path


def test_good_order_is_kept(package: Path) -> None:
    output = run_tool(package, "lint-imports", "--no-cache")
    assert "3 kept, 0 broken" in output


@pytest.mark.parametrize(
    ("subpackage", "source", "complaint"),
    [
        ("module", "import dovetail.trainer", "dovetail.module is not allowed to import"),
        ("module", "def f():\n    import dovetail.trainer", "dovetail.module is not allowed to"),
        ("config", "import numpy", "dovetail.config is not allowed to import numpy"),
        (
            "config",
            "def f():\n    import jax.numpy",
            "dovetail.config is not allowed to import jax",
        ),
        ("trainer", "import torch", "dovetail is not allowed to import torch"),
        ("attic", "", "dovetail.attic"),
    ],
)
def test_a_forbidden_import_is_found(
    package: Path, subpackage: str, source: str, complaint: str
) -> None:
    folder = package / "dovetail" / subpackage
    folder.mkdir(exist_ok=True)
    (folder / "planted.py").write_text(source)
    (folder / "__init__.py").touch()
    output = run_tool(package, "lint-imports", "--no-cache")
    assert complaint in output
    assert "1 broken" in output


@pytest.mark.parametrize("source", ["import jax._src.core", "from jax._src import core"])
def test_the_private_side_of_jax_is_closed(package: Path, source: str) -> None:
    (package / "dovetail" / "module" / "planted.py").write_text(source)
    assert "TID251" in run_tool(package, "ruff", "check", "--no-cache")


def test_no_two_classes_share_a_name() -> None:
    """A search for a class finds one; nested ones, such as Config, belong to theirs."""
    files = sorted((ROOT / "dovetail").rglob("*.py"))
    trees = [ast.parse(file.read_text()) for file in files]
    names = Counter(
        node.name for tree in trees for node in tree.body if isinstance(node, ast.ClassDef)
    )
    assert [name for name, count in names.items() if count > 1] == []


def private_imports(file: Path) -> list[str]:
    """Returns the names with an underscore that a file imports from other subpackages."""
    own = file.relative_to(ROOT).parts[:2]
    return [
        f"{file.relative_to(ROOT)}:{node.lineno}: {node.module}.{alias.name}"
        for node in ast.walk(ast.parse(file.read_text()))
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("dovetail.")
        for alias in node.names
        if tuple(str(node.module).split(".")[:2]) != own
        and any(name.startswith("_") for name in f"{node.module}.{alias.name}".split("."))
    ]


def test_no_subpackage_imports_private_names_of_another() -> None:
    """So the command line, above all, only calls what a Python user may call."""
    files = sorted((ROOT / "dovetail").rglob("*.py"))
    assert [name for file in files for name in private_imports(file)] == []


OF_TOKEN_BATCHES = {"tokens", "targets", "positions", "segment_ids", "loss_weights"}
OPAQUE = ("trainer", "plan", "targets", "runtime/console.py")


def fields_named(source: str) -> list[str]:
    """Returns the fields of a token batch that code reads or sets, with their lines."""
    names = {ast.Attribute: "attr", ast.keyword: "arg"}
    nodes = [node for node in ast.walk(ast.parse(source)) if type(node) in names]
    found = ((node.lineno, getattr(node, names[type(node)])) for node in nodes)
    return [f"{line}: {name}" for line, name in sorted(found, key=str) if name in OF_TOKEN_BATCHES]


@pytest.mark.parametrize("place", OPAQUE)
def test_no_field_of_a_token_batch_is_named(place: str) -> None:
    """A batch is opaque to them, so that any registered dataclass may be one."""
    path = ROOT / "dovetail" / place
    files = [path] if path.is_file() else sorted(path.rglob("*.py"))
    found = {file.name: fields_named(file.read_text()) for file in files}
    assert files
    assert {name: fields for name, fields in found.items() if fields} == {}


def test_a_named_field_of_a_token_batch_is_found() -> None:
    source = "from dovetail.targets import x\nrows = batch.tokens\nreplace(batch, targets=rows)\n"
    assert fields_named(source) == ["2: tokens", "3: targets"]
