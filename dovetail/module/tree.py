"""The tree of a built model: every module with its path, and every spec with its whole shape."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from dovetail.module.context import join
from dovetail.module.specs import ParameterSpec, Spec, VariableSpec

if TYPE_CHECKING:
    from dovetail.module.module import Module

S = TypeVar("S", bound=Spec)


@dataclass(frozen=True)
class Repeat:
    """How a parent repeats a child: how often, under which logical axis, at which depth of the path."""

    count: int
    axis: str
    depth: int


@dataclass(frozen=True)
class Node:
    """A module's place in the tree."""

    module: Module
    path: str
    repeats: tuple[Repeat, ...]
    dtype: str | None


class Tree:
    """All modules below a root, by identity and by path."""

    def __init__(self, root: Module) -> None:
        """Walks the modules once."""
        self.root = root
        self._nodes: dict[int, Node] = {}
        for node in _walk(Node(root, "", (), root.compute_dtype)):
            if id(node.module) in self._nodes:
                first = self._nodes[id(node.module)].path
                raise ValueError(
                    f"The same module stands at {first!r} and at {node.path!r}. Build each place its own, "
                    "and tie weights by config: Shared.Config(path=...)."
                )
            self._nodes[id(node.module)] = node

    def node(self, module: Module) -> Node:
        """Returns a module's place."""
        node = self._nodes.get(id(module))
        if node is None:
            raise RuntimeError(
                f"This {type(module).__name__} is not part of the {type(self.root).__name__} that runs. "
                "Assign it to an attribute in __init__, so that its parent knows it."
            )
        return node

    def at(self, path: str) -> Module:
        """Returns the (outermost) module at a path."""
        for node in self._nodes.values():
            if node.path == path:
                return node.module
        raise ValueError(f"No module stands at {path!r} in the {type(self.root).__name__} that runs.")

    def specs(self, kind: type[S], below: Module | None = None) -> dict[str, S]:
        """Returns the specs of a kind by path, with stacked shapes; of one subtree, if asked."""
        found: dict[str, S] = {}
        nodes = self._nodes.values() if below is None else [*self._below(below)]
        for node in nodes:
            for name, spec in node.module.own_specs().items():
                path = join(node.path, name)
                if path in found:
                    raise ValueError(f"Two modules declare the parameter {path!r}; rename one.")
                if isinstance(spec, kind):
                    found[path] = _stacked(spec, node.repeats)
        return found

    def _below(self, module: Module) -> Iterator[Node]:
        yield self.node(module)
        for edge in module.edges().values():
            yield from self._below(edge.module)


def parameter_specs(module: Module) -> dict[str, ParameterSpec]:
    """Returns the spec of every parameter of a model, by path. No array is made."""
    return dict(sorted(Tree(module).specs(ParameterSpec).items()))


def variable_specs(module: Module) -> dict[str, VariableSpec]:
    """Returns the spec of every variable of a model, by path."""
    return dict(sorted(Tree(module).specs(VariableSpec).items()))


def _walk(node: Node) -> Iterator[Node]:
    yield node
    for name, edge in node.module.edges().items():
        path = node.path if edge.transparent else join(node.path, name)
        repeats = node.repeats
        if edge.count is not None:
            depth = len(path.split("/")) if path else 0
            repeats = (*repeats, Repeat(edge.count, edge.axis, depth))
        child = edge.module
        yield from _walk(Node(child, path, repeats, child.compute_dtype or node.dtype))


def _stacked(spec: S, repeats: tuple[Repeat, ...]) -> S:
    stacked: Spec = spec
    for repeat in reversed(repeats):
        stacked = stacked.stack(repeat.count, repeat.axis, repeat.depth)
    return stacked  # type: ignore[return-value]  # `stack` keeps the class
