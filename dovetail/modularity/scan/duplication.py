"""Duplicated code: copies of a feature's definitions, and lines that model files share.

Two definitions are compared by the shape of their syntax trees. Variables have no names, constants
no values, and docstrings, decorators and annotations are left out. Attributes and keyword
arguments keep their names, since otherwise all short functions would be similar.

Model files are compared line by line, after normalization: without indentation, comments,
docstrings, imports and lines of brackets only, and with a placeholder for the model's own name. A
line counts as repeated in a run of at least three lines that the other file has, too; single lines
are equal by chance. Statements are not joined, so a long call with one different argument is mostly
repeated.
"""

from __future__ import annotations

import ast
import io
import itertools
import re
import statistics
import tokenize
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import TypeGuard

from dovetail.modularity.scan.classes import FunctionNode
from dovetail.modularity.scan.sources import Source
from dovetail.modularity.scan.words import FeatureWords, Phrase, split_words

SIMILAR = 0.8  # Jaccard similarity of n-grams
_TOKEN_RUN = 4
_MIN_TOKENS = 25  # shorter definitions are similar by chance
_LINE_RUN = 3  # single lines are equal by chance
_LETTER = re.compile(r"\w")
_MIN_LINES = 20  # a shorter file says little
_MODEL_FOLDERS = {"models", "model", "modeling", "model_zoo", "model_implementations"}
_COMMON_WORDS = {"attention", "common", "config", "layers", "main", "utils"}
_PREFIXES = {"modeling", "modelling", "configuration", "modular", *_MODEL_FOLDERS}


@dataclass(frozen=True)
class FeatureDefinition:
    """A definition of a feature, as the set of token runs (n-grams) of its syntax tree."""

    name: str
    file: str
    line: int
    runs: frozenset[int]


@dataclass(frozen=True)
class CopyGroup:
    """Similar definitions, in at least two files."""

    members: tuple[FeatureDefinition, ...]

    @property
    def num_files(self) -> int:
        """The number of files that hold one."""
        return len({member.file for member in self.members})


def feature_definitions(
    tree: ast.Module, file: str, words: FeatureWords
) -> list[FeatureDefinition]:
    """Returns the outermost definitions of a file that are named for the feature."""
    definitions = []
    for node in _outermost(tree, words):
        tokens = list(_tokens(node))
        if len(tokens) >= _MIN_TOKENS:
            runs = (
                hash(tuple(tokens[i : i + _TOKEN_RUN])) for i in range(len(tokens) - _TOKEN_RUN + 1)
            )
            definitions.append(FeatureDefinition(node.name, file, node.lineno, frozenset(runs)))
    return definitions


def find_copies(definitions: Sequence[FeatureDefinition]) -> list[CopyGroup]:
    """Groups similar definitions of at least two files; the largest group first."""
    same: dict[frozenset[int], list[FeatureDefinition]] = {}
    for definition in definitions:
        same.setdefault(definition.runs, []).append(definition)
    groups: list[list[FeatureDefinition]] = []
    shapes: list[list[frozenset[int]]] = []  # the n-grams of each group
    for runs, members in same.items():
        near = [i for i, group in enumerate(shapes) if any(_similar(runs, each) for each in group)]
        merged, merged_shapes = list(members), [runs]
        for i in reversed(near):
            merged += groups.pop(i)
            merged_shapes += shapes.pop(i)
        groups.append(merged)
        shapes.append(merged_shapes)
    found = [
        CopyGroup(tuple(sorted(group, key=lambda each: (each.file, each.line)))) for group in groups
    ]
    several = [copies for copies in found if copies.num_files > 1]
    return sorted(several, key=lambda copies: (-copies.num_files, copies.members[0].file))


def _similar(left: frozenset[int], right: frozenset[int]) -> bool:
    smaller, larger = sorted((len(left), len(right)))
    if smaller < SIMILAR * larger:
        return False
    common = len(left & right)
    return common >= SIMILAR * (smaller + larger - common)


def _outermost(tree: ast.AST, words: FeatureWords) -> Iterator[ast.ClassDef | FunctionNode]:
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.ClassDef | FunctionNode) and words.match(node.name):
            yield node
        elif not isinstance(node, ast.expr):
            yield from _outermost(node, words)


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
            if isinstance(child, ast.AST) and not (position == 0 and _is_docstring(child)):
                yield from _tokens(child)


def _token(node: ast.AST) -> str:
    kind = type(node).__name__
    if isinstance(node, ast.Attribute):
        return f"{kind} {node.attr}"
    if isinstance(node, ast.keyword):
        return f"{kind} {node.arg}"
    return kind


def _is_docstring(node: ast.AST) -> TypeGuard[ast.Expr]:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)


@dataclass(frozen=True)
class ModelFile:
    """A model's file as its normalised lines."""

    file: str
    lines: tuple[str, ...]


@dataclass(frozen=True)
class RepeatedFile:
    """A file, the other file that has most of its lines, and the share of lines."""

    file: str
    other: str
    share: float


@dataclass(frozen=True)
class Repetition:
    """The share of each model file's lines that another one has, and the median."""

    num_files: int
    median: float
    pairs: tuple[RepeatedFile, ...]  # the worst first


def is_model_file(name: str, pattern: str | None = None) -> bool:
    """Says whether a file is a model's: in a folder of models, or by a pattern of the user."""
    path = PurePosixPath(name)
    if path.suffix != ".py" or path.stem == "__init__":
        return False
    if pattern is not None:
        return path.match(pattern)
    return not _MODEL_FOLDERS.isdisjoint(path.parts[:-1])


def choose_model_files(names: Sequence[str], pattern: str | None = None) -> set[str]:
    """Returns the model files among these.

    Where a tenth of them or more are called `modeling_*`, the others are configs and tokenizers.
    """
    model_files = {name for name in names if is_model_file(name, pattern)}
    modeling = {name for name in model_files if PurePosixPath(name).name.startswith("modeling_")}
    by_name = pattern is None and 10 * len(modeling) >= max(len(model_files), 1)
    return modeling if by_name else model_files


def model_names(files: Iterable[str]) -> set[Phrase]:
    """Returns the names of models: those of the entries of a folder of models."""
    found = set()
    for file in files:
        for outer, inner in itertools.pairwise(PurePosixPath(file).with_suffix("").parts):
            if outer in _MODEL_FOLDERS:
                found.add(split_words(inner))
    return found


def model_file(tree: ast.Module, source: Source) -> ModelFile:
    """Normalises a model's file."""
    names = _model_names(source.name)
    left_out = _lines_left_out(tree)
    code = _without_comments(source.text)
    kept = (line for number, line in enumerate(code, start=1) if number not in left_out)
    lines = (names.sub("MODEL", " ".join(line.split())) for line in kept)
    return ModelFile(source.name, tuple(line for line in lines if _LETTER.search(line)))


def find_repetition(files: Sequence[ModelFile]) -> Repetition | None:
    """Compares all pairs of model files; None if fewer than two are long enough."""
    long = [each for each in files if len(each.lines) >= _MIN_LINES]
    if len(long) < 2:
        return None
    runs = [
        [hash(each.lines[i : i + _LINE_RUN]) for i in range(len(each.lines) - _LINE_RUN + 1)]
        for each in long
    ]
    holders: dict[int, set[int]] = {}
    for number, of_file in enumerate(runs):
        for run in of_file:
            holders.setdefault(run, set()).add(number)
    pairs = [_most_repeated(number, runs[number], holders, long) for number in range(len(long))]
    ordered = sorted(pairs, key=lambda pair: (-pair.share, pair.file))
    return Repetition(len(long), statistics.median(pair.share for pair in pairs), tuple(ordered))


def _most_repeated(
    number: int, runs: Sequence[int], holders: dict[int, set[int]], files: Sequence[ModelFile]
) -> RepeatedFile:
    covered: dict[int, int] = {}  # for each other file, a bit for each line that it has too
    for position, run in enumerate(runs):
        for other in holders[run]:
            covered[other] = covered.get(other, 0) | ((1 << _LINE_RUN) - 1) << position
    covered.pop(number, None)
    best = max(covered, key=lambda other: covered[other].bit_count(), default=None)
    here = files[number]
    if best is None:
        return RepeatedFile(here.file, "", 0.0)
    return RepeatedFile(here.file, files[best].file, covered[best].bit_count() / len(here.lines))


def _lines_left_out(tree: ast.Module) -> set[int]:
    """Returns the lines of imports and docstrings."""
    lines: set[int] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import | ast.ImportFrom) or _is_docstring(node):
            lines.update(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    return lines


def _without_comments(text: str) -> list[str]:
    lines = io.StringIO(text).readlines()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            row, column = token.start
            lines[row - 1] = lines[row - 1][:column]
    return lines


def _model_names(file: str) -> re.Pattern[str]:
    """Returns a pattern of the names by which a file calls its model, in any case."""
    path = PurePosixPath(file)
    parts = list(path.parts[:-1])
    inner = next((i for i, part in enumerate(parts) if part in _MODEL_FOLDERS), len(parts) - 1)
    names = set()
    for part in (path.stem, *parts[inner + 1 :]):
        words = [word for word in split_words(part) if word not in _PREFIXES]
        if len("".join(words)) > 2 and not set(words) <= _COMMON_WORDS:
            names.add("_?".join(words))
    return re.compile("|".join(sorted(names, key=len, reverse=True)) or r"(?!)", re.IGNORECASE)
