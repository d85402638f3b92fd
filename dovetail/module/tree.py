"""The tree of a built model: every module with its path, and every spec with its stacked shape."""

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
    """A repeated module: its count and logical axis, and the depth of its index in the path.

    `active` is how many of the copies one token uses; None means all.
    """

    module: Module
    count: int
    axis: str
    depth: int
    active: int | None = None


@dataclass(frozen=True)
class ModuleNode:
    """A module in the tree.

    Attributes:
        path: the prefix of its parameters' paths; a `wraps()` child has its wrapper's.
        attribute_path: the names of all attributes that lead to it, `wraps()` ones too.
        repeats: the repeated modules around it, outermost first; itself, if it is one.
        dtype: the dtype that its parameters are read in.
    """

    module: Module
    path: str
    attribute_path: str
    repeats: tuple[Repeat, ...]
    dtype: str | None


class Tree:
    """All modules below a root, by identity and by path."""

    def __init__(self, root: Module) -> None:
        self.root = root
        self._nodes: dict[int, ModuleNode] = {}
        self._by_path: dict[str, Module] = {}
        for node in _walk(ModuleNode(root, "", "", (), _dtype(root, ""))):
            if id(node.module) in self._nodes:
                first = self._nodes[id(node.module)].attribute_path
                raise ValueError(
                    f"The same module is at {first!r} and at {node.attribute_path!r}. Build one "
                    "for each, and tie weights by config: Shared.Config(path=...)."
                )
            self._nodes[id(node.module)] = node
            self._by_path.setdefault(node.path, node.module)

    def holds(self, module: Module) -> bool:
        """Says whether a module is in this tree."""
        return id(module) in self._nodes

    def nodes(self) -> list[ModuleNode]:
        """Returns all nodes, parents first."""
        return list(self._nodes.values())

    def node(self, module: Module) -> ModuleNode:
        """Returns the node of a module."""
        node = self._nodes.get(id(module))
        if node is None:
            raise RuntimeError(
                f"This {type(module).__name__} is not in the tree of the running "
                f"{type(self.root).__name__}. Assign it to an attribute in __init__ (or to a list "
                "or dict in one)."
            )
        return node

    def resolve(self, path: str, origin: Module) -> Module:
        """Returns the (outermost) module at a path, relative to `origin` or one of its parents.

        The innermost parent comes first, so that a model with tied weights can be a child of
        another model.
        """
        around = self.node(origin).path.split("/")
        for depth in range(len(around), -1, -1):
            found = self._by_path.get(join(*around[:depth], path))
            if found is not None and found is not origin:
                return found
        raise ConfigError(
            f"{self.node(origin).attribute_path}: there is no module at {path!r}, relative to it "
            f"or to a parent of it. {did_you_mean(path, self._by_path)}"
        )

    def specs(self, kind: type[S], below: Module | None = None) -> dict[str, S]:
        """Returns the specs of a kind by path, with stacked shapes; of one subtree, if given."""
        found: dict[str, S] = {}
        declared: dict[str, ModuleNode] = {}
        for node in self._nodes.values() if below is None else self._below(below):
            for name, spec in node.module.own_specs().items():
                path = join(node.path, name)
                if path in declared:
                    first = declared[path]
                    raise ConfigError(
                        f"Both {_described(first)} and {_described(node)} declare {path!r}. A "
                        "wrapped module's parameters have its wrapper's path: rename one."
                    )
                declared[path] = node
                if isinstance(spec, kind):
                    found[path] = _stacked(spec, node.repeats)
        return found

    def read_dtypes(self, below: Module) -> dict[str, str | None]:
        """Returns the dtype that each array of a subtree is read in; None means its own."""
        return {
            join(node.path, name): spec.read_dtype(node.dtype)
            for node in self._below(below)
            for name, spec in node.module.own_specs().items()
        }

    def _below(self, module: Module) -> Iterator[ModuleNode]:
        yield self.node(module)
        for edge in module.edges().values():
            yield from self._below(edge.module)


def modules(module: Module) -> list[tuple[str, Module]]:
    """Returns every module of a model with its path, parents first.

    A wrapper and the module it wraps have the same path.
    """
    return [(node.path, node.module) for node in Tree(module).nodes()]


def parameter_specs(module: Module) -> dict[str, ParameterSpec]:
    """Returns the spec of every parameter of a model, by path, without creating arrays."""
    return dict(sorted(Tree(module).specs(ParameterSpec).items()))


def variable_specs(module: Module) -> dict[str, VariableSpec]:
    """Returns the spec of every variable of a model, by path."""
    return dict(sorted(Tree(module).specs(VariableSpec).items()))


def _walk(node: ModuleNode) -> Iterator[ModuleNode]:
    yield node
    for name, edge in node.module.edges().items():
        child, attributes = edge.module, join(node.attribute_path, name)
        path = node.path if edge.transparent else join(node.path, name)
        repeats = node.repeats
        if edge.count is not None:
            depth = len(path.split("/")) if path else 0
            repeats = (*repeats, Repeat(child, edge.count, edge.axis, depth, edge.active))
        yield from _walk(
            ModuleNode(child, path, attributes, repeats, _dtype(child, attributes) or node.dtype)
        )


def _dtype(module: Module, attribute_path: str) -> str | None:
    dtype = module.compute_dtype
    if dtype is not None:
        try:
            jnp.dtype(dtype)
        except TypeError as error:
            raise ConfigError(
                f"{join(attribute_path, 'dtype')}: {dtype!r} is not a dtype. Write one such as "
                "'bfloat16' or 'float32'."
            ) from error
    return dtype


def _described(node: ModuleNode) -> str:
    return f"{node.attribute_path or 'the root'} ({type(node.module).__name__})"


def _stacked(spec: S, repeats: tuple[Repeat, ...]) -> S:
    for repeat in reversed(repeats):
        spec = spec.stack(repeat.count, repeat.axis, repeat.depth, repeat.active)
    return spec


@dataclass(frozen=True)
class ParameterCounts:
    """The parameters of a model.

    Attributes:
        total: all of them.
        active: those that one token uses; fewer for a mixture of experts.
        by_module: sums by module path; "" is the whole model.
    """

    total: int
    active: int
    by_module: dict[str, int]


def count_parameters(module: Module) -> ParameterCounts:
    """Counts the parameters of a model; no array is allocated."""
    specs = parameter_specs(module)
    by_module: dict[str, int] = {}
    for path, spec in specs.items():
        names = path.split("/")
        for depth in range(len(names) + 1):
            prefix = "/".join(names[:depth])
            by_module[prefix] = by_module.get(prefix, 0) + spec.size
    return ParameterCounts(
        total=sum(spec.size for spec in specs.values()),
        active=sum(spec.active_size for spec in specs.values()),
        by_module=dict(sorted(by_module.items())),
    )
