"""The scanner: parses every file once and collects the report."""

from __future__ import annotations

import ast
import re
import tokenize
from collections.abc import Callable, Sequence
from pathlib import Path, PurePosixPath

from dovetail.modularity.scan.classes import (
    ClassSignature,
    ClassSize,
    class_signatures,
    largest_config,
    largest_constructor,
)
from dovetail.modularity.scan.duplication import (
    FeatureDefinition,
    ModelFile,
    choose_model_files,
    feature_definitions,
    find_copies,
    find_repetition,
    model_file,
    model_names,
)
from dovetail.modularity.scan.hits import FileNames, Hit
from dovetail.modularity.scan.report import FeatureScan, ScanReport
from dovetail.modularity.scan.sources import Source, config_keys, files, read, relative
from dovetail.modularity.scan.words import FeatureWords

_PROGRESS_EVERY = 500  # files


def scan(
    root: Path,
    features: Sequence[FeatureWords],
    *,
    tests: bool = False,
    models: str | None = None,
    progress: Callable[[str], None] = lambda line: None,
) -> ScanReport:
    """Measures a code base.

    Args:
        root: The folder (or the one file) to read.
        features: The words of the features to look for.
        tests: Whether tests count.
        models: A pattern of model files; by default those in folders named for models.
        progress: Called with a line of progress.

    Raises:
        ConfigError: if the path does not exist or holds no Python.
    """
    paths = files(root, tests)
    names = [relative(path, root) for path in paths]
    models_named = model_names(names)
    model_files = choose_model_files(names, models)
    scanner = _Scanner([each.ignoring(models_named) for each in features], model_files)
    for number, path in enumerate(paths, start=1):
        scanner.read(read(path, root))
        if number % _PROGRESS_EVERY == 0:
            progress(f"read {number} of {len(paths)} files")
    if len(scanner.models) > _PROGRESS_EVERY // 5:
        progress(f"comparing {len(scanner.models)} model files")
    return ScanReport(
        path=str(root),
        num_files=scanner.num_files,
        num_lines=scanner.num_lines,
        tests=tests,
        unparsable=scanner.unparsable,
        num_model_files=len(model_files),
        largest_config=largest_config(scanner.classes, scanner.config_files),
        largest_constructor=largest_constructor(scanner.classes),
        repetition=find_repetition(scanner.models),
        features=tuple(each.report(model_files) for each in scanner.features),
    )


class _Scanner:
    """Collects facts file by file. Syntax trees are large, so none is kept."""

    def __init__(self, features: Sequence[FeatureWords], model_files: set[str]) -> None:
        self.features = [_FeatureHits(each) for each in features]
        self.num_files = self.num_lines = 0
        self.unparsable: dict[str, str] = {}
        self.classes: list[ClassSignature] = []
        self.config_files: list[ClassSize] = []
        self.models: list[ModelFile] = []
        self._model_files = model_files

    def read(self, source: Source) -> None:
        """Reads a file."""
        if source.name.endswith(".py"):
            self._read_python(source)
        else:
            self._read_config(source)

    def _read_python(self, source: Source) -> None:
        self.num_files += 1
        self.num_lines += source.text.count("\n")
        try:
            tree = source.parse()
            self.classes += class_signatures(tree, source.name)
            possible = [each for each in self.features if each.pattern.search(source.text)]
            if possible:
                file_names = FileNames(tree, source.name)
                for feature in possible:
                    feature.read(file_names, tree, source.name)
            if source.name in self._model_files:
                self.models.append(model_file(tree, source))
        except (SyntaxError, ValueError, RecursionError, tokenize.TokenError) as error:
            self.unparsable[source.name] = f"{type(error).__name__}: {error}"

    def _read_config(self, source: Source) -> None:
        keys = config_keys(source)
        num_keys = len({key for key, _, is_top_level in keys if is_top_level})
        self.config_files.append(
            ClassSize(source.name.rpartition("/")[2], source.name, 1, num_keys)
        )
        for feature in self.features:
            named = [(key, line) for key, line, _ in keys if feature.words.match(key)]
            feature.hits += [Hit("config_keys", source.name, line, key) for key, line in named]
            feature.count_lines(source.name, {line for _, line in named})


class _FeatureHits:
    """Collects the hits of one feature."""

    def __init__(self, words: FeatureWords) -> None:
        self.words = words
        self.hits: list[Hit] = []
        self.lines: dict[str, int] = {}
        self.definitions: list[FeatureDefinition] = []
        self.pattern = re.compile(words.pattern, re.IGNORECASE)

    def read(self, places: FileNames, tree: ast.Module, file: str) -> None:
        """Reads a Python file."""
        self.hits += places.hits(self.words)
        self.count_lines(file, places.lines(self.words))
        self.definitions += feature_definitions(tree, file, self.words)

    def count_lines(self, file: str, lines: set[int]) -> None:
        """Adds the number of lines of a file that name the feature."""
        if lines:
            self.lines[file] = len(lines)

    def report(self, model_files: set[str]) -> FeatureScan:
        """Returns the result."""
        return FeatureScan(
            name=self.words.name,
            words=self.words.words,
            hits=tuple(self.hits),
            lines=self.lines,
            copies=tuple(find_copies(self.definitions)),
            model_files=frozenset(model_files),
            named_files=frozenset(
                file
                for file in self.lines
                if self.words.match_any(PurePosixPath(file).with_suffix("").parts)
            ),
        )
