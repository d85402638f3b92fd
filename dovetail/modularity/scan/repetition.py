"""How much of a model's file stands in another model's file already.

Lines are compared after normalising: without margins, comments, docstrings, imports and lines of
brackets only, and with the model's own name (of its file and folder) struck out. A line counts as
repeated where it stands in a run of at least three lines that the other file also has; single
lines are alike by chance. Statements are not joined to one line each: a long call of which one
argument differs is mostly repeated.
"""

from __future__ import annotations

import ast
import io
import itertools
import re
import statistics
import tokenize
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath

from dovetail.modularity.scan.sources import Source
from dovetail.modularity.scan.words import Phrase, split_words

_RUN = 3
_LETTER = re.compile(r"\w")
_FEWEST = 20  # lines; a shorter file says little
_MODEL_FOLDERS = {"models", "model", "modeling", "model_zoo", "model_implementations"}
_COMMON_WORDS = {"attention", "common", "config", "layers", "main", "utils"}
_PREFIXES = {"modeling", "modelling", "configuration", "modular", *_MODEL_FOLDERS}


@dataclass(frozen=True)
class ModelFile:
    """A model's file as its normalised lines."""

    file: str
    lines: tuple[str, ...]


@dataclass(frozen=True)
class Pair:
    """A file, the other file that holds most of its lines, and the share of lines it holds."""

    file: str
    other: str
    share: float


@dataclass(frozen=True)
class Repetition:
    """Of all model files: the middle share of lines that another one holds, and every file's."""

    num_files: int
    median: float
    pairs: tuple[Pair, ...]  # the worst first


def is_model_file(name: str, pattern: str | None = None) -> bool:
    """Says whether a file is a model's: in a folder of models, or as a pattern of the user says."""
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
    found = {name for name in names if is_model_file(name, pattern)}
    modeling = {name for name in found if PurePosixPath(name).name.startswith("modeling_")}
    by_name = pattern is None and 10 * len(modeling) >= max(len(found), 1)
    return modeling if by_name else found


def model_names(files: Iterable[str]) -> set[Phrase]:
    """Returns the names of models: of what stands right in a folder of models."""
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
    """Compares every two model files; nothing where there are fewer than two of some length."""
    long = [each for each in files if len(each.lines) >= _FEWEST]
    if len(long) < 2:
        return None
    runs = [
        [hash(each.lines[i : i + _RUN]) for i in range(len(each.lines) - _RUN + 1)] for each in long
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
) -> Pair:
    covered: dict[int, int] = {}  # for each other file, a bit for each line that it holds
    for position, run in enumerate(runs):
        for other in holders[run]:
            covered[other] = covered.get(other, 0) | ((1 << _RUN) - 1) << position
    covered.pop(number, None)
    best = max(covered, key=lambda other: covered[other].bit_count(), default=None)
    here = files[number]
    if best is None:
        return Pair(here.file, "", 0.0)
    return Pair(here.file, files[best].file, covered[best].bit_count() / len(here.lines))


def _lines_left_out(tree: ast.Module) -> set[int]:
    """Returns the lines of imports and docstrings."""
    lines: set[int] = set()
    for node in ast.walk(tree):
        prose = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
        if isinstance(node, ast.stmt) and (prose or isinstance(node, ast.Import | ast.ImportFrom)):
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
