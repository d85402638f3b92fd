"""The rotating third: `make sweep` and `make slow` run a third, chosen by a hash of the commit.

The cases of each test function are dealt out in turn, so that every third holds a third of every
function's cases, and three commits in different thirds together run all of them.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

THIRDS = 3


def third_of(commit: str) -> int:
    """Returns the third that a commit runs: 0, 1 or 2."""
    return int(hashlib.sha256(commit.encode()).hexdigest(), 16) % THIRDS


def select(names: Iterable[str], third: int) -> set[str]:
    """Returns the names of one third, dealt out by test function."""
    functions: dict[str, list[str]] = {}
    for name in sorted(names):
        functions.setdefault(name.partition("[")[0], []).append(name)
    chosen: set[str] = set()
    for function, cases in functions.items():
        start = third_of(function)  # functions with one case do not all fall into the same third
        chosen.update(case for index, case in enumerate(cases) if (start + index) % THIRDS == third)
    return chosen
