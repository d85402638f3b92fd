"""The scan itself: reads every file once, keeps what is needed of it, and adds up."""

from __future__ import annotations

import ast
import re
import tokenize
from collections.abc import Callable, Sequence
from pathlib import Path, PurePosixPath

from dovetail.modularity.scan.classes import ClassFacts, class_facts
from dovetail.modularity.scan.config_files import config_keys
from dovetail.modularity.scan.copies import Definition, feature_definitions, find_copies
from dovetail.modularity.scan.hits import Hit
from dovetail.modularity.scan.naming import NamedPlaces
from dovetail.modularity.scan.repetition import (
    ModelFile,
    choose_model_files,
    find_repetition,
    model_file,
    model_names,
)
from dovetail.modularity.scan.report import FeatureReport, Report
from dovetail.modularity.scan.sizes import Size, largest_config, largest_constructor
from dovetail.modularity.scan.sources import Source, files, read, relative
from dovetail.modularity.scan.words import Vocabulary

_SAY_EVERY = 500  # files


def scan(
    root: Path,
    vocabularies: Sequence[Vocabulary],
    *,
    tests: bool = False,
    models: str | None = None,
    progress: Callable[[str], None] = lambda line: None,
) -> Report:
    """Measures a code base.

    Args:
        root: The folder (or the one file) to read.
        vocabularies: The features to look for.
        tests: Whether tests count.
        models: A pattern of the files of models; by default those in folders named for models.
        progress: Is told in a line how far it is.

    Raises:
        ConfigError: if the path does not exist or holds no Python.
    """
    paths = files(root, tests)
    names = [relative(path, root) for path in paths]
    struck = model_names(names)
    model_files = choose_model_files(names, models)
    reading = _Reading([each.striking(struck) for each in vocabularies], model_files)
    for number, path in enumerate(paths, start=1):
        reading.read(read(path, root))
        if number % _SAY_EVERY == 0:
            progress(f"read {number} of {len(paths)} files")
    if len(reading.models) > _SAY_EVERY // 5:
        progress(f"comparing {len(reading.models)} model files")
    return Report(
        path=str(root),
        num_files=reading.num_files,
        num_lines=reading.num_lines,
        tests=tests,
        unparsable=reading.unparsable,
        num_model_files=len(model_files),
        largest_config=largest_config(reading.classes, reading.config_files),
        largest_constructor=largest_constructor(reading.classes),
        repetition=find_repetition(reading.models),
        features=tuple(each.report(model_files) for each in reading.features),
    )


class _Reading:
    """What has been read so far. Syntax trees are large, so none is kept."""

    def __init__(self, vocabularies: Sequence[Vocabulary], model_files: set[str]) -> None:
        self.features = [_Feature(each) for each in vocabularies]
        self.num_files = self.num_lines = 0
        self.unparsable: dict[str, str] = {}
        self.classes: list[ClassFacts] = []
        self.config_files: list[Size] = []
        self.models: list[ModelFile] = []
        self._model_files = model_files

    def read(self, source: Source) -> None:
        """Takes a file in."""
        if source.name.endswith(".py"):
            self._read_python(source)
        else:
            self._read_config(source)

    def _read_python(self, source: Source) -> None:
        self.num_files += 1
        self.num_lines += source.text.count("\n")
        try:
            tree = source.parse()
            self.classes += class_facts(tree, source.name)
            possible = [each for each in self.features if each.may_be_in(source)]
            if possible:
                places = NamedPlaces(tree, source.name)
                for feature in possible:
                    feature.take(places, tree, source.name)
            if source.name in self._model_files:
                self.models.append(model_file(tree, source))
        except (SyntaxError, ValueError, RecursionError, tokenize.TokenError) as error:
            self.unparsable[source.name] = f"{type(error).__name__}: {error}"

    def _read_config(self, source: Source) -> None:
        keys = config_keys(source)
        outer = len({key for key, _, at_margin in keys if at_margin})
        self.config_files.append(Size(source.name.rpartition("/")[2], source.name, 1, outer))
        for feature in self.features:
            named = [(key, line) for key, line, _ in keys if feature.vocabulary.names(key)]
            feature.hits += [Hit("config_keys", source.name, line, key) for key, line in named]
            feature.count_lines(source.name, {line for _, line in named})


class _Feature:
    """What has been read so far of one feature."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self.vocabulary = vocabulary
        self.hits: list[Hit] = []
        self.lines: dict[str, int] = {}
        self.definitions: list[Definition] = []
        self._quick = re.compile(vocabulary.pattern, re.IGNORECASE)

    def may_be_in(self, source: Source) -> bool:
        """Says whether it is worth walking over the file."""
        return self._quick.search(source.text) is not None

    def take(self, places: NamedPlaces, tree: ast.Module, file: str) -> None:
        """Takes a Python file in."""
        self.hits += places.hits(self.vocabulary)
        self.count_lines(file, places.lines(self.vocabulary))
        self.definitions += feature_definitions(tree, file, self.vocabulary)

    def count_lines(self, file: str, lines: set[int]) -> None:
        """Takes in which lines of a file name the feature."""
        if lines:
            self.lines[file] = len(lines)

    def report(self, model_files: set[str]) -> FeatureReport:
        """Adds up."""
        return FeatureReport(
            name=self.vocabulary.name,
            words=self.vocabulary.words,
            hits=tuple(self.hits),
            lines=self.lines,
            copies=tuple(find_copies(self.definitions)),
            model_files=frozenset(model_files),
            named_files=frozenset(
                file
                for file in self.lines
                if self.vocabulary.names_any(PurePosixPath(file).with_suffix("").parts)
            ),
        )
