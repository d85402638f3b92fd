"""The default folder of a run: a name that a person still understands a week later.

runs/tiny-lm                      the experiment as it is
runs/tiny-lm,moe,peak=0.003       with `--with moe` and learner.schedule.peak=0.003
runs/tiny-lm,moe,...-1a2b3c4d     with a hash, where the name would be too long or ambiguous
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from dovetail.config import Config, all_values, diff, identity
from dovetail.runtime import short_hash

_MAX_LENGTH = 96
_UNSAFE = re.compile(r"[^\w.,=+:\-]+")


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
        (_short_path(change.path, paths), change.right)
        for change in diff(identity(before), identity(after))
    ]
    pieces = [*modifiers, *(f"{path}={value}" for path, value in changes)]
    if not pieces:
        return Path("runs") / experiment
    name = ",".join([experiment, *pieces])
    readable = _UNSAFE.sub("-", name.replace("'", "").replace('"', ""))
    is_exact = readable == name.replace("'", "") and None not in dict(changes).values()
    if len(readable) <= _MAX_LENGTH and is_exact:
        return Path("runs") / readable
    return Path("runs") / f"{readable[: _MAX_LENGTH - 9]}-{short_hash(after)}"


def _short_path(path: str, paths: Sequence[str]) -> str:
    """Returns the shortest end of a path that no other path has."""
    pieces = path.split(".")
    for count in range(1, len(pieces)):
        end = ".".join(pieces[-count:])
        if sum(other == end or other.endswith(f".{end}") for other in paths) <= 1:
            return end
    return path
