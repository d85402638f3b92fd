"""Where a Python file names a feature: the walk over one syntax tree."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from dovetail.modularity.scan.classes import (
    FunctionNode,
    constructor,
    dotted,
    is_config,
    own_fields,
    parameters,
)
from dovetail.modularity.scan.hits import Hit
from dovetail.modularity.scan.words import Vocabulary

# A string that could be a name: a key, a choice, an option. Sentences and paths are not.
_NAME_STRING = re.compile(r"-{0,2}[A-Za-z_][A-Za-z0-9_-]{0,60}")

# `RotaryEmbedding`, `_Rotary` and `Ernie4_5_Experts`, and neither `ROPE_TABLE` nor `T_rows`.
_CLASS_NAME = re.compile(r"_*[A-Z](?![A-Z0-9]*(_|$))|_*[A-Z]$")
_BUILDER = re.compile(r"(build|create|default|default_config|init|instantiate|make|from_\w+)$")

Place = tuple[str, int, str]  # the kind, the line and the name


def find_hits(tree: ast.Module, file: str, vocabulary: Vocabulary) -> list[Hit]:
    """Returns every place of a file where the feature is named, sorted by kind and line."""
    places: set[Place] = set()
    constructors: set[FunctionNode] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef):
            places.update(_class_places(node))
            init = constructor(node)
            constructors.update([init] if init else [])
        places.update(_places(node, constructors))
        places.update(_conditional_places(node, vocabulary))
    kept = {place for place in places if place[0] == "conditionals" or vocabulary.names(place[2])}
    return sorted(Hit(kind, file, line, name) for kind, line, name in kept)


def naming_lines(tree: ast.Module, vocabulary: Vocabulary) -> set[int]:
    """Returns the lines of code that name the feature in any way; comments are no code."""
    return {line for name, line in _identifiers(tree) if vocabulary.names(name)}


def _class_places(node: ast.ClassDef) -> Iterator[Place]:
    kind = "config_keys" if is_config(node) else "constructor_parameters"
    for name, line in own_fields(node):
        yield kind, line, name
    init = constructor(node)
    for each in parameters(init)[1:] if init else ():
        yield kind, each.lineno, each.arg


def _places(node: ast.AST, constructors: set[FunctionNode]) -> Iterator[Place]:
    """Yields the places that need no more than the node itself to be known."""
    if isinstance(node, ast.ClassDef | FunctionNode):
        yield "definitions", node.lineno, node.name
    if isinstance(node, FunctionNode | ast.Lambda) and node not in constructors:
        for each in parameters(node):
            yield "parameters", each.lineno, each.arg
    elif isinstance(node, ast.Call):
        yield from _call_places(node)
    elif isinstance(node, ast.Dict):
        for key in node.keys:
            if key is not None and (text := _name_string(key)):
                yield "config_keys", key.lineno, text
    elif isinstance(node, ast.Import | ast.ImportFrom):
        for alias in node.names:
            yield "imports", alias.lineno, alias.name.rpartition(".")[2]


def _call_places(node: ast.Call) -> Iterator[Place]:
    chain = dotted(node.func).split(".")
    if _CLASS_NAME.match(chain[-1]) or _BUILDER.match(chain[-1]):
        # `Rotary.Config(...)` and `Rotary.default_config()` build one as `Rotary(...)` does.
        for part in chain:
            if _CLASS_NAME.match(part):
                yield "constructions", node.lineno, part
    else:
        yield "calls", node.lineno, chain[-1]
    for keyword in node.keywords:
        yield "arguments", keyword.lineno, keyword.arg or ""
    if chain[-1] == "add_argument":
        for option in node.args:
            if isinstance(option, ast.Constant) and str(option.value).startswith("--"):
                yield "config_keys", option.lineno, str(option.value).lstrip("-")


def _conditional_places(node: ast.AST, vocabulary: Vocabulary) -> Iterator[Place]:
    """Yields a conditional under the first name in its test that names the feature."""
    tests: list[ast.AST] = []
    if isinstance(node, ast.If | ast.IfExp):
        tests = [node.test]
    elif isinstance(node, ast.Match):
        tests = [node.subject, *(case.pattern for case in node.cases)]
        tests += [case.guard for case in node.cases if case.guard]
    elif isinstance(node, ast.comprehension):
        tests = [*node.ifs]
    for test in tests:
        named = [(name, line) for name, line in _identifiers(test) if vocabulary.names(name)]
        if named:
            yield "conditionals", getattr(test, "lineno", named[0][1]), named[0][0]


def _identifiers(tree: ast.AST) -> Iterator[tuple[str, int]]:
    """Yields every name in a tree with its line, and every string that could be one."""
    for node in ast.walk(tree):
        for attribute in ("id", "attr", "arg", "name"):
            name = getattr(node, attribute, None)
            if isinstance(name, str) and hasattr(node, "lineno"):
                yield name.rpartition(".")[2], node.lineno
        if isinstance(node, ast.ImportFrom) and node.module:
            yield node.module.rpartition(".")[2], node.lineno
        if isinstance(node, ast.Constant) and (text := _name_string(node)):
            yield text, node.lineno


def _name_string(node: ast.expr) -> str | None:
    if not isinstance(node, ast.Constant) or not isinstance(node.value, str):
        return None
    return node.value if _NAME_STRING.fullmatch(node.value) else None
