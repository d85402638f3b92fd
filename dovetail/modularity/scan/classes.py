"""The fields and parameters that classes take, and the largest config and constructor."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from dovetail.modularity.scan.words import split_words

_CONFIG_WORDS = {"config", "configs", "configuration", "args", "arguments", "options", "settings"}
_CONFIG_WORDS |= {"hparams", "hyperparameters", "kwargs"}
_CONFIG_BASES = {"BaseModel", "pydantic.BaseModel", "BaseSettings", "TypedDict"}

FunctionNode = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True)
class ClassSignature:
    """A class's bases, fields and constructor parameters."""

    name: str
    file: str
    line: int
    bases: tuple[str, ...]
    is_config: bool
    fields: tuple[str, ...]
    init: tuple[str, ...] | None
    init_line: int


def class_signatures(tree: ast.Module, file: str) -> list[ClassSignature]:
    """Returns the signature of every class of a file, nested ones as `Outer.Inner`."""
    return [
        _signature(node, name, file)
        for name, node in _named_classes(tree, "")
        if not _is_protocol(node)
    ]


def is_config(node: ast.ClassDef) -> bool:
    """Says whether a class is a config, by its name and the names of its bases."""
    bases = base_names(node)
    last_words = {split_words(name)[-1:] for name in (node.name, *bases)}
    return any(
        _CONFIG_WORDS.intersection(words) for words in last_words
    ) or not _CONFIG_BASES.isdisjoint(bases)


def own_fields(node: ast.ClassDef) -> list[tuple[str, int]]:
    """Returns the fields from which a class without a constructor is built, with their lines.

    Dataclasses, attrs, pydantic, Flax, Equinox and similar libraries make fields of the annotated
    names in the class body. A class with its own constructor takes that one's parameters.
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
    """Returns the named parameters of a function, without `*args` and `**kwargs`."""
    arguments = function.args
    return [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]


def base_names(node: ast.ClassDef) -> list[str]:
    """Returns the dotted names of a class's bases, without subscripts."""
    bare = [base.value if isinstance(base, ast.Subscript) else base for base in node.bases]
    return [name for name in map(dotted, bare) if name]


def dotted(node: ast.AST) -> str:
    """Returns `a.b.c` for such an expression; empty for any other."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        owner = dotted(node.value)
        return f"{owner}.{node.attr}" if owner else node.attr
    return ""


def _signature(node: ast.ClassDef, name: str, file: str) -> ClassSignature:
    init = constructor(node)
    return ClassSignature(
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


def _is_protocol(node: ast.ClassDef) -> bool:
    return any(base.rpartition(".")[2] == "Protocol" for base in base_names(node))


def _is_class_variable(annotation: ast.expr) -> bool:
    outer = annotation.value if isinstance(annotation, ast.Subscript) else annotation
    return dotted(outer).rpartition(".")[2] in ("ClassVar", "KW_ONLY", "InitVar")


@dataclass(frozen=True)
class ClassSize:
    """A class or config file: its location, and its number of fields or parameters."""

    name: str
    file: str
    line: int
    count: int


def largest_config(
    classes: Sequence[ClassSignature], files: Iterable[ClassSize] = ()
) -> ClassSize | None:
    """Returns the config with the most fields, inherited ones included, or file with most keys."""
    index = _ClassIndex(classes)
    sizes = [
        ClassSize(each.name, each.file, each.line, len(index.parameters(each)))
        for each in classes
        if index.is_config(each)
    ]
    return _largest([*sizes, *files])


def largest_constructor(classes: Sequence[ClassSignature]) -> ClassSize | None:
    """Returns the class, other than configs, with the most constructor parameters or fields."""
    index = _ClassIndex(classes)
    return _largest(
        ClassSize(each.name, each.file, each.init_line, len(index.parameters(each)))
        for each in classes
        if not index.is_config(each)
    )


def _largest(sizes: Iterable[ClassSize]) -> ClassSize | None:
    filled = [size for size in sizes if size.count]
    return max(filled, key=lambda size: (size.count, size.file), default=None)


class _ClassIndex:
    """Finds the bases of a class in the same code base, by their names."""

    def __init__(self, classes: Sequence[ClassSignature]) -> None:
        self._by_name: dict[str, list[ClassSignature]] = {}
        for each in classes:
            self._by_name.setdefault(each.name, []).append(each)

    def parameters(self, signature: ClassSignature) -> set[str]:
        """Returns the parameters of the class: its fields, and those of its nearest constructor."""
        taken: set[str] = set()
        for each in self._lineage(signature):
            taken |= set(each.fields if each.init is None else each.init)
        return taken

    def is_config(self, signature: ClassSignature) -> bool:
        """Says whether a class is a config by its own name or a base's."""
        return any(each.is_config for each in self._lineage(signature))

    def _lineage(self, signature: ClassSignature) -> list[ClassSignature]:
        """Returns the class and its bases, up to the first with a constructor."""
        lineage = [signature]
        for each in lineage:  # it grows during the loop
            if each.init is None:
                bases = [self._base(name, each) for name in each.bases]
                lineage += [base for base in bases if base is not None and base not in lineage]
        return lineage

    def _base(self, name: str, child: ClassSignature) -> ClassSignature | None:
        """Returns the class `a.b.Base`: that of the same file, or the only one of that name."""
        parts = name.split(".")
        for start in range(len(parts)):
            same_name = self._by_name.get(".".join(parts[start:]), [])
            in_file = [each for each in same_name if each.file == child.file]
            if len(in_file or same_name) == 1:
                return (in_file or same_name)[0]
        return None
