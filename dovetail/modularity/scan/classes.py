"""What a class takes: the fields of configs and dataclasses, and the parameters of constructors."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass

from dovetail.modularity.scan.words import split_words

_CONFIG_WORDS = {"config", "configs", "configuration", "args", "arguments", "options", "settings"}
_CONFIG_WORDS |= {"hparams", "hyperparameters", "kwargs"}
_CONFIG_BASES = {"BaseModel", "pydantic.BaseModel", "BaseSettings", "TypedDict"}

FunctionNode = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True)
class ClassFacts:
    """What is kept of a class after its file is let go."""

    name: str
    file: str
    line: int
    bases: tuple[str, ...]
    is_config: bool
    fields: tuple[str, ...]
    init: tuple[str, ...] | None
    init_line: int


def class_facts(tree: ast.Module, file: str) -> list[ClassFacts]:
    """Returns the facts of every class of a file, nested ones under `Outer.Inner`."""
    return [
        _facts(node, name, file)
        for name, node in _named_classes(tree, "")
        if not _is_protocol(node)
    ]


def is_config(node: ast.ClassDef) -> bool:
    """Says whether a class is a config, by its name and the names of its bases."""
    bases = base_names(node)
    named = any(_is_config_name(name) for name in (node.name, *bases))
    return named or not _CONFIG_BASES.isdisjoint(bases)


def own_fields(node: ast.ClassDef) -> list[tuple[str, int]]:
    """Returns the fields from which a class without a constructor is built, with their lines.

    Annotated names of the class's body are fields for dataclasses, attrs, pydantic, Flax, Equinox
    and their kin alike. A class with a constructor of its own takes that one's parameters.
    """
    if constructor(node) is not None or _is_protocol(node):
        return []
    return [
        (item.target.id, item.lineno)
        for item in node.body
        if isinstance(item, ast.AnnAssign)
        and isinstance(item.target, ast.Name)
        and not _is_class_variable(item.annotation)
    ]


def constructor(node: ast.ClassDef) -> FunctionNode | None:
    """Returns the class's own `__init__`."""
    for item in node.body:
        if isinstance(item, FunctionNode) and item.name == "__init__":
            return item
    return None


def parameters(function: FunctionNode | ast.Lambda) -> list[ast.arg]:
    """Returns what a function takes by name; `*args` and `**kwargs` are no names."""
    arguments = function.args
    return [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]


def base_names(node: ast.ClassDef) -> list[str]:
    """Returns the dotted names of a class's bases, without subscripts."""
    bare = [base.value if isinstance(base, ast.Subscript) else base for base in node.bases]
    return [name for name in map(dotted, bare) if name]


def dotted(node: ast.AST) -> str:
    """Returns `a.b.c` for such an expression, and nothing for any other."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        owner = dotted(node.value)
        return f"{owner}.{node.attr}" if owner else node.attr
    return ""


def _facts(node: ast.ClassDef, name: str, file: str) -> ClassFacts:
    init = constructor(node)
    return ClassFacts(
        name=name,
        file=file,
        line=node.lineno,
        bases=tuple(base_names(node)),
        is_config=is_config(node),
        fields=tuple(field for field, _ in own_fields(node)),
        init=tuple(each.arg for each in parameters(init)[1:]) if init else None,
        init_line=init.lineno if init else node.lineno,
    )


def _named_classes(node: ast.AST, prefix: str) -> Iterator[tuple[str, ast.ClassDef]]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.ClassDef):
            name = f"{prefix}{child.name}"
            yield name, child
            yield from _named_classes(child, f"{name}.")
        elif not isinstance(child, ast.expr):
            yield from _named_classes(child, prefix)


def _is_config_name(name: str) -> bool:
    return not _CONFIG_WORDS.isdisjoint(split_words(name)[-1:])


def _is_protocol(node: ast.ClassDef) -> bool:
    return any(base.rpartition(".")[2] == "Protocol" for base in base_names(node))


def _is_class_variable(annotation: ast.expr) -> bool:
    outer = annotation.value if isinstance(annotation, ast.Subscript) else annotation
    return dotted(outer).rpartition(".")[2] in ("ClassVar", "KW_ONLY", "InitVar")
