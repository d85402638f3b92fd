"""The tree of a built model: every module with its path, and every spec with its whole shape."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

import jax.numpy as jnp

from dovetail.config import ConfigError, did_you_mean
from dovetail.module.context import join
from dovetail.module.specs import ParameterSpec, Spec, VariableSpec

if TYPE_CHECKING:
    from dovetail.module.module import Module

S = TypeVar("S", bound=Spec)


@dataclass(frozen=True)
class Repeat:
    """A repeated module: how often, under which logical axis, after how many pieces of the path.

    `active` is how many of the copies one token goes through; None means all.
    """

    module: Module
    count: int
    axis: str
    depth: int
    active: int | None = None


@dataclass(frozen=True)
class Node:
    """A module's place in the tree.

    Attributes:
        path: the owner's path, which its parameters are known by; that of a `wraps()` child is its
            wrapper's.
        place: the names of all the attributes that lead to it, transparent ones too.
        repeats: the repeated modules around it, outermost first; itself, if it is one.
        dtype: what its parameters are read in.
    """

    module: Module
    path: str
    place: str
    repeats: tuple[Repeat, ...]
    dtype: str | None


class Tree:
    """All modules below a root, by identity and by path."""

    def __init__(self, root: Module) -> None:
        """Walks the modules once."""
        self.root = root
        self._nodes: dict[int, Node] = {}
        self._by_path: dict[str, Module] = {}
        for node in _walk(Node(root, "", "", (), _dtype(root, ""))):
            if id(node.module) in self._nodes:
                first = self._nodes[id(node.module)].place
                raise ValueError(
                    f"The same module stands at {first!r} and at {node.place!r}. Build each place "
                    "its own, and tie weights by config: Shared.Config(path=...)."
                )
            self._nodes[id(node.module)] = node
            self._by_path.setdefault(node.path, node.module)

    def holds(self, module: Module) -> bool:
        """Says whether a module is part of this tree."""
        return id(module) in self._nodes

    def nodes(self) -> list[Node]:
        """Returns all places, outer ones first."""
        return list(self._nodes.values())

    def node(self, module: Module) -> Node:
        """Returns a module's place."""
        node = self._nodes.get(id(module))
        if node is None:
            raise RuntimeError(
                f"This {type(module).__name__} is not part of the {type(self.root).__name__} that "
                "runs. Assign it to an attribute in __init__ (or to a list or dict in one), so "
                "that its parent knows it."
            )
        return node

    def resolve(self, path: str, origin: Module) -> Module:
        """Returns the (outermost) module at a path that `origin` names.

        The path is looked for from the modules around `origin`, innermost first, so that a model
        with tied weights may be a part of a larger one.
        """
        around = self.node(origin).path.split("/")
        for depth in range(len(around), -1, -1):
            found = self._by_path.get(join(*around[:depth], path))
            if found is not None and found is not origin:
                return found
        raise ConfigError(
            f"{self.node(origin).place}: no module stands at {path!r}, seen from here or from the "
            f"{type(self.root).__name__} that runs. {did_you_mean(path, self._by_path)}"
        )

    def specs(self, kind: type[S], below: Module | None = None) -> dict[str, S]:
        """Returns the specs of a kind by path, with stacked shapes; of one subtree, if asked."""
        found: dict[str, S] = {}
        declared: dict[str, Node] = {}
        for node in self._nodes.values() if below is None else self._below(below):
            for name, spec in node.module.own_specs().items():
                path = join(node.path, name)
                if path in declared:
                    first = declared[path]
                    raise ConfigError(
                        f"Both {_described(first)} and {_described(node)} declare {path!r}. A "
                        "wrapped module's parameters stand beside its wrapper's: rename one."
                    )
                declared[path] = node
                if isinstance(spec, kind):
                    found[path] = _stacked(spec, node.repeats)
        return found

    def read_dtypes(self, below: Module) -> dict[str, str | None]:
        """Returns the type of number that each array of a subtree is read in; None: its own."""
        return {
            join(node.path, name): spec.read_dtype(node.dtype)
            for node in self._below(below)
            for name, spec in node.module.own_specs().items()
        }

    def _below(self, module: Module) -> Iterator[Node]:
        yield self.node(module)
        for edge in module.edges().values():
            yield from self._below(edge.module)


def modules(module: Module) -> list[tuple[str, Module]]:
    """Returns every module of a model with its path, outer ones first.

    A wrapper and what it wraps have the same path.
    """
    return [(node.path, node.module) for node in Tree(module).nodes()]


def parameter_specs(module: Module) -> dict[str, ParameterSpec]:
    """Returns the spec of every parameter of a model, by path. No array is made."""
    return dict(sorted(Tree(module).specs(ParameterSpec).items()))


def variable_specs(module: Module) -> dict[str, VariableSpec]:
    """Returns the spec of every variable of a model, by path."""
    return dict(sorted(Tree(module).specs(VariableSpec).items()))


def _walk(node: Node) -> Iterator[Node]:
    yield node
    for name, edge in node.module.edges().items():
        child, place = edge.module, join(node.place, name)
        path = node.path if edge.transparent else join(node.path, name)
        repeats = node.repeats
        if edge.count is not None:
            depth = len(path.split("/")) if path else 0
            repeats = (*repeats, Repeat(child, edge.count, edge.axis, depth, edge.active))
        yield from _walk(Node(child, path, place, repeats, _dtype(child, place) or node.dtype))


def _dtype(module: Module, place: str) -> str | None:
    dtype = module.compute_dtype
    if dtype is not None:
        try:
            jnp.dtype(dtype)
        except TypeError as error:
            raise ConfigError(
                f"{join(place, 'dtype')}: {dtype!r} is no type of number. Write one such as "
                "'bfloat16' or 'float32'."
            ) from error
    return dtype


def _described(node: Node) -> str:
    return f"{node.place or 'the root'} ({type(node.module).__name__})"


def _stacked(spec: S, repeats: tuple[Repeat, ...]) -> S:
    for repeat in reversed(repeats):
        spec = spec.stack(repeat.count, repeat.axis, repeat.depth, repeat.active)
    return spec
