"""What differs between two configs, line by line."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from dovetail.config.base import Config
from dovetail.config.text import all_values
from dovetail.config.traverse import visit
from dovetail.config.values import join, path_in_order


@dataclass(frozen=True)
class Difference:
    """One path whose values differ; None where a side has no such path."""

    path: str
    left: str | None
    right: str | None
    by_default: bool = False
    """Whether one side has no such path, and nobody set it on the other."""

    def __str__(self) -> str:
        """Shows both sides."""
        left, right = self.left or "(absent)", self.right or "(absent)"
        return f"{self.path or '(root)'}: {left} -> {right}"


def diff(left: Config[Any], right: Config[Any]) -> list[Difference]:
    """Returns every difference between two trees, in the order of their paths."""
    left, right = left.clone(), right.clone()  # their paths begin at these configs
    before, after = all_values(left), all_values(right)
    lonely = {path: left for path in before if path not in after}
    lonely |= {path: right for path in after if path not in before}
    unset = {id(tree): _unset(tree) for tree in (left, right)}
    return [
        Difference(
            path,
            before.get(path),
            after.get(path),
            by_default=path in lonely and _is_within(path, unset[id(lonely[path])]),
        )
        for path in sorted({**before, **after}, key=path_in_order)
        if before.get(path) != after.get(path)
    ]


def _unset(tree: Config[Any]) -> set[str]:
    """Returns the paths of all fields that nobody set, neither themselves nor inside."""
    owners = list(visit(tree))
    return {
        join(p, name) for p, owner in owners for name in owner.fields() if not owner.is_set(name)
    }


def _is_within(path: str, above: set[str]) -> bool:
    """Says whether a path, or one that it lies below, is among some."""
    while path and path not in above:
        path = path.rpartition(".")[0]
    return bool(path)
