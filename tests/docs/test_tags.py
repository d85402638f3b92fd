"""The page on memory lists every tag that a remat policy may name."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from dovetail.kernels.attention.op import OUTPUT_TAG

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "memory.md"


def given_tags() -> Iterator[str]:
    """Yields the names that the package's calls of `tag` give."""
    files = (
        file for name in ("kernels", "layers") for file in (ROOT / "dovetail" / name).rglob("*.py")
    )
    for file in sorted(files):
        for node in ast.walk(ast.parse(file.read_text())):
            match node:
                case ast.Call(func=ast.Name(id="tag"), args=[_, ast.Constant(value=str(name))]):
                    yield name
                case ast.Call(func=ast.Name(id="tag"), args=[_, ast.Name(id="OUTPUT_TAG")]):
                    yield OUTPUT_TAG


def test_every_tag_is_listed() -> None:
    section = PAGE.read_text().partition("## Tags")[2].partition("\n## ")[0]
    listed = re.findall(r"^\| `(\w+)`", section, re.MULTILINE)
    assert sorted(listed) == sorted(set(given_tags()))
