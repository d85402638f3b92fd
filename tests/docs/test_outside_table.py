"""The page on modularity lists every outside package, with the lines of its file."""

import ast
from pathlib import Path

from tools.outside_table import FOLDER, PACKAGES, table

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "modularity.md"
HELPERS = {"steps.py"}


def test_the_table_is_that_of_the_files() -> None:
    written = PAGE.read_text().partition("## Packages outside")[2].partition("\n## ")[0]
    rows = [line for line in written.splitlines() if line.startswith("|")]
    assert rows == table(), "run `python tools/outside_table.py` and paste what it prints"


def test_every_package_is_in_the_table() -> None:
    files = {path.name for path in FOLDER.glob("*.py") if not path.name.startswith("test_")}
    assert files - HELPERS == set(PACKAGES)


def test_the_library_names_none_of_their_classes() -> None:
    """So that each is one file and no edit."""
    own = set()
    for name in PACKAGES:
        tree = ast.parse((FOLDER / name).read_text())
        own |= {node.name for node in tree.body if isinstance(node, ast.ClassDef)}
    used = set()
    for path in (ROOT / "dovetail").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            names = {ast.Name: "id", ast.Attribute: "attr", ast.ClassDef: "name", ast.alias: "name"}
            used.add(getattr(node, names.get(type(node), ""), None))
    assert not own & used
