"""The page on model families lists every size as it is."""

from pathlib import Path

from tools.models_table import table

PAGE = Path(__file__).parents[2] / "docs" / "models.md"


def test_the_table_is_that_of_the_package() -> None:
    written = PAGE.read_text().partition("## Sizes")[2].splitlines()
    rows = [line for line in written if line.startswith("|")]
    assert rows == table(), "run `python tools/models_table.py` and paste what it prints"
