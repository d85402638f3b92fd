"""Holds the tree that the README prints to the folders that exist.

The tree is the `text` block that begins with `dovetail/`. Lines one step below it are rooms, lines
at the margin are folders beside the package, and deeper lines are free:

    dovetail/
      config/     typed configs
      cli/        one thin file a verb
    tests/        mirror the package
"""

import re
from pathlib import Path

from tests.docs.blocks import read_blocks

_ENTRY = re.compile(r"^(?P<margin>[\s│├└─]*)(?P<name>[\w.-]+)/(?:\s+(?P<phrase>\S.*))?$")


def find_problems(readme: str, root: Path) -> list[str]:
    """Returns what is wrong with the tree in this text of the README; nothing where all is well."""
    trees = [
        block.text
        for block in read_blocks(readme, "README.md")
        if block.language == "text" and block.text.startswith("dovetail/")
    ]
    if len(trees) != 1:
        return [f"expected one text block that begins with dovetail/, found {len(trees)}"]
    entries = read_entries(trees[0])
    existing = {f"dovetail/{room}" for room in rooms(root)}
    problems = [f"{path}/ has no phrase" for path, phrase in entries.items() if not phrase]
    problems += [f"{path}/ does not exist" for path in entries if not (root / path).is_dir()]
    problems += [f"{path}/ is missing" for path in sorted(existing - set(entries))]
    return problems


def read_entries(tree: str) -> dict[str, str]:
    """Returns the phrase of each folder of the tree, by path from the root of the repository."""
    entries: dict[str, str] = {}
    step = 0
    for line in tree.splitlines()[1:]:
        entry = _ENTRY.match(line.rstrip())
        if not entry:
            continue
        margin = len(entry["margin"])
        step = step or margin
        if margin in (0, step):
            name = f"dovetail/{entry['name']}" if margin else entry["name"]
            entries[name] = entry["phrase"] or ""
    return entries


def rooms(root: Path) -> list[str]:
    """Returns the names of the rooms: the folders of the package that hold Python files."""
    return sorted(path.parent.name for path in (root / "dovetail").glob("*/__init__.py"))
