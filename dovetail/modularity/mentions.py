"""Mentions: where the name of a feature stands in files that are not its own.

Names are compared as words, so `use_alibi`, `AlibiScores` and "alibi" are mentions of alibi. Some
are there for good reason: a part that a feature sets is a default of all models, or a shared kernel
has a joint for it. Those are listed in `joints.py`, each with its reason; any other is a leak.
"""

from __future__ import annotations

import ast
import functools
from collections.abc import Iterator, Mapping
from pathlib import Path

from dovetail.features import Feature
from dovetail.modularity.joints import JOINTS
from dovetail.modularity.leaks import COMPOSERS, Line
from dovetail.modularity.paths import is_inside
from dovetail.modularity.scan.words import Vocabulary, built_in
from dovetail.modularity.store import PACKAGE

# What composes names what it uses, and this room measures all of it.
_EXEMPT = (*COMPOSERS, "features", "modularity")


def mentions(feature: Feature, package: Path = PACKAGE) -> list[Line]:
    """Returns the lines that name a feature, outside of its files, of compositions and features."""
    words = _vocabulary(feature.name)
    found = []
    for file in sorted(package.rglob("*.py")):
        name = str(file.relative_to(package))
        is_own = is_inside(name, feature.files)
        if is_own or name.partition("/")[0] in _EXEMPT:
            continue
        text = file.read_text()
        lines = text.splitlines()
        numbers = {number for number, said in _said(text) if words.names(said)}
        found += [Line(name, number, lines[number - 1].strip()) for number in sorted(numbers)]
    return found


def unexplained(known: Mapping[str, Feature], package: Path = PACKAGE) -> list[str]:
    """Returns the mentions that `joints.py` does not explain."""
    return [
        f"{feature.name} in {line}"
        for feature in known.values()
        for line in mentions(feature, package)
        if not is_inside(line.file, JOINTS.get(feature.name, {}))
    ]


def unneeded(known: Mapping[str, Feature], package: Path = PACKAGE) -> list[str]:
    """Returns what `joints.py` explains and is not there."""
    return [
        f"{name} in {place}"
        for name, places in JOINTS.items()
        for place in places
        if not any(is_inside(line.file, [place]) for line in mentions(known[name], package))
    ]


@functools.cache
def _vocabulary(name: str) -> Vocabulary:
    known = built_in().get(name.replace("-", "_"), {})
    words = [name.replace("-", "_"), *known.get("words", ())]
    return Vocabulary(name, words, known.get("unless", ()))


@functools.lru_cache(maxsize=1024)
def _said(text: str) -> tuple[tuple[int, str], ...]:
    """Returns every identifier and every text of one word, each with its line."""
    return tuple(_walk(ast.parse(text)))


def _walk(tree: ast.Module) -> Iterator[tuple[int, str]]:
    for node in ast.walk(tree):
        match node:
            case ast.Name(id=said) | ast.Attribute(attr=said) | ast.arg(arg=said):
                yield node.lineno, said
            case ast.FunctionDef(name=said) | ast.ClassDef(name=said):
                yield node.lineno, said
            case ast.alias(name=said):
                yield node.lineno, said
            case ast.keyword(arg=str(said), value=value):
                yield value.lineno, said
            case ast.Constant(value=str(said)) if not said.count(" "):
                yield node.lineno, said
