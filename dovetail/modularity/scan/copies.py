"""Copies of a feature: definitions in several files that are nearly the same code.

Two definitions are compared by the shape of their syntax trees: variables have no names, constants
no values, and docstrings, decorators and annotations are left out. Attributes and keyword
arguments keep their names, or every short function would be like every other.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from dovetail.modularity.scan.classes import FunctionNode
from dovetail.modularity.scan.words import Vocabulary

ALIKE = 0.8  # the share of runs of tokens that two definitions have in common
_RUN = 4
_SMALLEST = 25  # tokens; shorter definitions are alike by chance


@dataclass(frozen=True)
class Definition:
    """A definition of a feature, as the set of the runs of tokens of its syntax tree."""

    name: str
    file: str
    line: int
    runs: frozenset[int]


@dataclass(frozen=True)
class Copies:
    """Definitions in at least two files that are alike."""

    members: tuple[Definition, ...]

    @property
    def num_files(self) -> int:
        """The number of files that hold one."""
        return len({member.file for member in self.members})


def feature_definitions(tree: ast.Module, file: str, vocabulary: Vocabulary) -> list[Definition]:
    """Returns the outermost definitions of a file that are named for the feature."""
    found = []
    for node in _outermost(tree, vocabulary):
        tokens = list(_tokens(node))
        if len(tokens) >= _SMALLEST:
            runs = (hash(tuple(tokens[i : i + _RUN])) for i in range(len(tokens) - _RUN + 1))
            found.append(Definition(node.name, file, node.lineno, frozenset(runs)))
    return found


def find_copies(definitions: Sequence[Definition]) -> list[Copies]:
    """Groups definitions that are alike, over at least two files; the largest group first."""
    same: dict[frozenset[int], list[Definition]] = {}
    for definition in definitions:
        same.setdefault(definition.runs, []).append(definition)
    groups: list[list[Definition]] = []
    shapes: list[list[frozenset[int]]] = []  # those of each group
    for runs, members in same.items():
        near = [i for i, group in enumerate(shapes) if any(_alike(runs, each) for each in group)]
        merged, merged_shapes = list(members), [runs]
        for i in reversed(near):
            merged += groups.pop(i)
            merged_shapes += shapes.pop(i)
        groups.append(merged)
        shapes.append(merged_shapes)
    found = [
        Copies(tuple(sorted(group, key=lambda each: (each.file, each.line)))) for group in groups
    ]
    several = [copies for copies in found if copies.num_files > 1]
    return sorted(several, key=lambda copies: (-copies.num_files, copies.members[0].file))


def _alike(left: frozenset[int], right: frozenset[int]) -> bool:
    smaller, larger = sorted((len(left), len(right)))
    if smaller < ALIKE * larger:
        return False
    common = len(left & right)
    return common >= ALIKE * (smaller + larger - common)


def _outermost(tree: ast.AST, vocabulary: Vocabulary) -> Iterator[ast.ClassDef | FunctionNode]:
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.ClassDef | FunctionNode) and vocabulary.names(node.name):
            yield node
        elif not isinstance(node, ast.expr):
            yield from _outermost(node, vocabulary)


def _tokens(node: ast.AST) -> Iterator[str]:
    """Yields the tree's nodes in order, without names that a copy would change."""
    if isinstance(node, ast.expr_context):
        return
    yield _token(node)
    for field, value in ast.iter_fields(node):
        if field in ("annotation", "returns", "decorator_list", "type_params"):
            continue
        children = value if isinstance(value, list) else [value]
        for position, child in enumerate(children):
            if isinstance(child, ast.AST) and not (position == 0 and _is_prose(child)):
                yield from _tokens(child)


def _token(node: ast.AST) -> str:
    kind = type(node).__name__
    if isinstance(node, ast.Attribute):
        return f"{kind} {node.attr}"
    if isinstance(node, ast.keyword):
        return f"{kind} {node.arg}"
    return kind


def _is_prose(node: ast.AST) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
