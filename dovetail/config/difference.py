"""What differs between two configs, line by line."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from dovetail.config.base import Config
from dovetail.config.text import all_values
from dovetail.config.values import path_in_order


@dataclass(frozen=True)
class Difference:
    """One path whose values differ; None where a side has no such path."""

    path: str
    left: str | None
    right: str | None

    def __str__(self) -> str:
        """Shows both sides."""
        left, right = self.left or "(absent)", self.right or "(absent)"
        return f"{self.path or '(root)'}: {left} -> {right}"


def diff(left: Config[Any], right: Config[Any]) -> list[Difference]:
    """Returns every difference between two trees, in the order of their paths."""
    before, after = all_values(left), all_values(right)
    paths = [*before, *(path for path in after if path not in before)]
    return [
        Difference(path, before.get(path), after.get(path))
        for path in sorted(paths, key=path_in_order)
        if before.get(path) != after.get(path)
    ]
