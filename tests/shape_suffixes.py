"""The import hook of the tests: it checks annotations and shape suffixes at every call.

A name such as `q_BSHD` promises an array of four axes, and that every name of the same function
that carries an `S` has the same size there. A digit promises that size: `index_1S`. The hook
rewrites the functions of the checked subpackages so that each return first checks all suffixed
names of its scope, arguments and local variables alike. beartype checks the annotations.
"""

from __future__ import annotations

import ast
import importlib.abc
import importlib.machinery
import importlib.util
import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import CodeType, ModuleType
from typing import Any, TypeVar

from beartype import beartype

F = TypeVar("F", bound=Callable[..., object])

SUFFIX = re.compile(r"^_*[a-z]\w*?_([A-Z0-9]*[A-Z][A-Z0-9]*)$")
_CHECK, _DECORATOR = "__check_shape_suffixes__", "__check_annotations__"


class ShapeSuffixError(AssertionError):
    """A name promises another shape than its array has."""


def install(packages: Sequence[str]) -> None:
    """Checks every function of these packages; modules that are imported already are left as is."""
    sys.meta_path.insert(0, _Finder(tuple(packages)))


def check_suffixes(where: str, values: Mapping[str, Any], result: Any = None) -> Any:
    """Returns the result, after checking the suffixed names among the values of one scope."""
    sizes: dict[str, tuple[int, str]] = {}
    for name, value in values.items():
        match, shape = SUFFIX.match(name), getattr(value, "shape", None)
        if match is None or not isinstance(shape, tuple):
            continue
        letters = match[1]
        if len(letters) != len(shape):
            raise ShapeSuffixError(
                f"{where}: {name} promises {len(letters)} axes, its shape is {shape}."
            )
        for letter, size in zip(letters, shape, strict=True):
            expected, other = sizes.setdefault(letter, (size, name))
            if letter.isdigit() and size != int(letter):
                raise ShapeSuffixError(
                    f"{where}: {name} promises an axis of {letter}, got {shape}."
                )
            if size != expected:
                raise ShapeSuffixError(
                    f"{where}: {letter} is {expected} in {other}, but {size} in {name} {shape}."
                )
    return result


def check_annotations(function: F) -> F:
    """Makes a function check its annotations, unless it is a constructor.

    A record of arrays that JAX knows as a pytree is also built with other leaves: `jax.tree.map`
    makes one of shardings or of specs, and that is right though its fields say arrays.
    """
    return function if function.__name__ == "__init__" else beartype(function)


class _Finder(importlib.abc.MetaPathFinder):
    def __init__(self, packages: tuple[str, ...]) -> None:
        self.packages = packages

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if not any(name == package or name.startswith(f"{package}.") for package in self.packages):
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path, target)
        if spec is not None and isinstance(spec.loader, importlib.machinery.SourceFileLoader):
            spec.loader = _Loader(spec.loader.name, spec.loader.path)
        return spec


class _Loader(importlib.machinery.SourceFileLoader):
    """Compiles a module with the checks in it. Nothing is written to `__pycache__`."""

    def get_code(self, fullname: str) -> CodeType:
        path = self.get_filename(fullname)
        return self.source_to_code(self.get_data(path), path)

    def source_to_code(self, data: Any, path: Any, *, _optimize: int = -1) -> CodeType:
        tree = _Transformer().visit(ast.parse(data, filename=str(path)))
        return compile(
            ast.fix_missing_locations(tree), path, "exec", dont_inherit=True, optimize=_optimize
        )

    def exec_module(self, module: ModuleType) -> None:
        vars(module).update({_CHECK: check_suffixes, _DECORATOR: check_annotations})
        super().exec_module(module)


class _Transformer(ast.NodeTransformer):
    """Adds the two checks to every function."""

    def __init__(self) -> None:
        self.scopes: list[tuple[str, list[str]]] = []

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.FunctionDef:
        names = sorted(name for name in _bound(node) if SUFFIX.match(name))
        self.scopes.append((node.name, names))
        self.generic_visit(node)
        self.scopes.pop()
        if names and not isinstance(node.body[-1], ast.Return):
            node.body.append(ast.Expr(_call(node.name, names, None)))
        # Last in the list is the innermost: it sees the function itself, as written.
        node.decorator_list.append(ast.Name(_DECORATOR, ast.Load()))
        return node

    def visit_Lambda(self, node: ast.Lambda) -> ast.Lambda:
        return node

    def visit_Return(self, node: ast.Return) -> ast.Return:
        function, names = self.scopes[-1]
        if names:
            node.value = _call(function, names, node.value)
        return node


def _call(function: str, names: Iterable[str], value: ast.expr | None) -> ast.Call:
    """Returns the call of the check on the names, which passes the value through."""
    # A comprehension has a scope of its own, so locals() is taken outside of it.
    source = f"(lambda here: {{k: here[k] for k in {tuple(names)!r} if k in here}})(locals())"
    values = ast.parse(source, mode="eval").body
    arguments = [ast.Constant(function), values, value or ast.Constant(None)]
    return ast.Call(ast.Name(_CHECK, ast.Load()), arguments, [])


def _bound(function: ast.FunctionDef) -> set[str]:
    """Returns the names that a function binds itself; those of functions inside it are theirs."""
    arguments = function.args
    every = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]
    names = {argument.arg for argument in every}
    rest: list[ast.AST] = list(function.body)
    while rest:
        node = rest.pop()
        if isinstance(node, ast.FunctionDef | ast.ClassDef | ast.Lambda):
            continue
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names.add(node.id)
        if isinstance(node, ast.ListComp | ast.SetComp | ast.DictComp | ast.GeneratorExp):
            continue  # its variables have their own scope
        rest.extend(ast.iter_child_nodes(node))
    return names
