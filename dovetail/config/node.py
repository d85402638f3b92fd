"""What a config keeps: its values, where they were set, and its place in a tree."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from dovetail.config.provenance import Origin
from dovetail.config.values import join


@dataclass(slots=True)
class Node:
    """The state of one config, on one attribute, so that no field name can clash with it."""

    values: dict[str, Any] = field(default_factory=dict)
    explicit: dict[str, Origin] = field(default_factory=dict)
    parent: Any = None  # the config that holds this one
    key: str = ""  # where in the parent: a field's name, and keys below it
    place: str = ""  # for a copy that stands alone: the path of what it was copied from

    def path(self) -> str:
        """Returns the path from the root of the tree."""
        return join(*self._pieces()[1:])

    def location(self) -> str:
        """Returns the path for messages: a copy of a child is still known by the child's path."""
        return join(*self._pieces())

    def _pieces(self) -> list[str]:
        pieces: list[str] = []
        node = self
        while node.parent is not None:
            pieces.append(node.key)
            node = node.parent._node
        return [node.place, *reversed(pieces)]


class HasNode:
    """Declares the node on a plain class, so that type checkers take it for no field."""

    _node: Node
