"""The default folder of a run: a name that a person still understands a week later.

runs/tiny-lm                      the experiment as it is
runs/tiny-lm,moe,peak=0.003       with `--with moe` and learner.schedule.peak=0.003
runs/tiny-lm,corpus=TextFiles     with another component; its defaults are left out
runs/tiny-lm,moe,...-1a2b3c4d     with a hash, where the name would be too long or ambiguous
"""

from __future__ import annotations

import re
from collections.abc import Container, Sequence
from pathlib import Path
from typing import Any

from dovetail.config import Config, all_values, diff, identity, to_text
from dovetail.runtime import short_hash

_MAX_LENGTH = 96
_UNSAFE = re.compile(r"[^\w.,=+:\-]+")
_UNSAFE_START = re.compile(r"(?<=[=,])[^\w.,=+:\-]+")  # of a value
_OWN_NAME = re.compile(r"^dovetail(?:\.\w+)+:([\w.]+)(?:\(\))?$")  # dovetail.data:TextFiles()

RUNS = Path("runs")
"""The folder below the working folder in which runs are by default."""


def default_folder(
    experiment: str, modifiers: Sequence[str], before: Config[Any], after: Config[Any]
) -> Path:
    """Returns the folder of an experiment's run.

    Args:
        experiment: its name.
        modifiers: as `--with` takes them.
        before: its config with the modifiers alone.
        after: its complete config, with the target's rule and key=value.
    """
    paths = list(all_values(after))
    changes = [
        (_short_path(path, paths), _OWN_NAME.sub(r"\1", value))
        for path, value in _changes(identity(before), identity(after))
    ]
    pieces = [*modifiers, *(f"{path}={value}" for path, value in changes)]
    if not pieces:
        return RUNS / experiment
    name = ",".join([experiment, *pieces]).replace("'", "")
    readable = _UNSAFE.sub("-", _UNSAFE_START.sub("", name.replace('"', "")))
    if len(readable) <= _MAX_LENGTH and readable == name:
        return RUNS / readable
    return RUNS / f"{readable[: _MAX_LENGTH - 9].rstrip('-')}-{short_hash(after)}"


def _changes(before: Config[Any], after: Config[Any]) -> list[tuple[str, str]]:
    """Returns the new values by path, without those that follow from another change.

    A component that is swapped for another one has the other's fields. Those with their defaults
    say nothing more than its name.
    """
    differences = {each.path: each.right for each in diff(before, after)}
    lines = to_text(after).splitlines()[1:]  # without defaults
    set_paths = {line.partition(" = ")[0] for line in lines}
    return [
        (path, value)
        for path, value in differences.items()
        if value is not None and (path in set_paths or not _is_below(path, differences))
    ]


def _is_below(path: str, changed: Container[str]) -> bool:
    """Says whether a component or container that holds a path has changed."""
    while path := path.rpartition(".")[0]:
        if path in changed:
            return True
    return False


def _short_path(path: str, paths: Sequence[str]) -> str:
    """Returns the shortest end of a path that no other path has."""
    pieces = path.split(".")
    for count in range(1, len(pieces)):
        end = ".".join(pieces[-count:])
        if sum(other == end or other.endswith(f".{end}") for other in paths) <= 1:
            return end
    return path
