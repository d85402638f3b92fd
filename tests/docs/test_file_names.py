"""The files and folders that the developers' documents name exist."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
_NAME = re.compile(r"`((?:[a-z_]+/)+(?:[a-z_]+\.\w+)?)`")


@pytest.mark.parametrize("document", ["README.md", "CONTRIBUTING.md", "docs/architecture.md"])
def test_named_files_exist(document: str) -> None:
    names = set(_NAME.findall((ROOT / document).read_text(encoding="utf-8")))
    missing = [
        name
        for name in sorted(names)
        if not any((folder / name).exists() for folder in (ROOT, ROOT / "dovetail"))
    ]
    assert not missing, f"{document} names what does not exist: {missing}"
