"""Checks the tree that the README prints against the folders that exist.

The tree is the `text` block that begins with `dovetail/`. A line names a folder (`config/`), a
file, or several files, and ends with a phrase about them:

    dovetail/
      config/                   typed configs
      trainer/                  the training loop
        loop.py                 load, step, log, save
        feed.py, samples.py     batches to devices; generated text
    tests/                      mirror the package

Every entry must exist. Every subpackage must be listed, and a folder that lists some of its files
and folders must list all of them.
"""

import re
from collections.abc import Iterator
from pathlib import Path

from tests.docs.blocks import read_blocks

_ENTRY = re.compile(
    r"^(?P<margin>[\s│├└─]*)(?P<names>[\w.-]+/?(?:, [\w.-]+/?)*)(?:\s{2,}(?P<phrase>\S.*))?$"
)


def find_problems(readme: str, root: Path) -> list[str]:
    """Returns what is wrong with the tree in the text of a README; an empty list if nothing is."""
    trees = [
        block.text
        for block in read_blocks(readme, "README.md")
        if block.language == "text" and block.text.startswith("dovetail/")
    ]
    if len(trees) != 1:
        return [f"expected one text block that begins with dovetail/, found {len(trees)}"]
    entries = dict(read_entries(trees[0]))
    problems = [f"{path} has no phrase" for path, phrase in entries.items() if not phrase]
    for path in entries:
        exists = (root / path).is_dir() if path.endswith("/") else (root / path).is_file()
        problems += [] if exists else [f"{path} does not exist"]
    opened = {"dovetail/"} | {_parent(path) for path in entries if path.startswith("dovetail/")}
    for folder in sorted(opened):
        missing = sorted(set(contents(root, folder)) - set(entries))
        problems += [f"{path} is missing" for path in missing]
    return problems


def read_entries(tree: str) -> Iterator[tuple[str, str]]:
    """Yields path and phrase of each entry below `dovetail/`; paths of folders end with a slash."""
    folders = [(0, "dovetail/")]  # the open folders, each with its margin
    for line in tree.splitlines()[1:]:
        entry = _ENTRY.match(line.rstrip())
        if not entry:
            continue
        margin = len(entry["margin"])
        while folders and folders[-1][0] >= margin:
            folders.pop()
        parent = folders[-1][1] if folders else ""
        for name in entry["names"].split(", "):
            yield parent + name, entry["phrase"] or ""
            if name.endswith("/"):
                folders.append((margin, parent + name))


def contents(root: Path, folder: str) -> Iterator[str]:
    """Yields the modules and packages in a folder of the package; of the package, packages only."""
    for path in (root / folder).iterdir():
        if (path / "__init__.py").is_file():
            yield f"{folder}{path.name}/"
        elif path.suffix == ".py" and path.name != "__init__.py" and folder != "dovetail/":
            yield folder + path.name


def _parent(path: str) -> str:
    return path.rstrip("/").rpartition("/")[0] + "/"
