"""Encapsulation checks: features own their classes, and configs do not flatten their children.

Both read the sources and the config classes; nothing is run.
"""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, get_type_hints

from dovetail.config import Component, Config
from dovetail.features import Feature
from dovetail.modularity.leaks import COMPOSING, OLD_NAMES, SourceLine
from dovetail.modularity.ownership import (
    is_inside,
    owned_code,
    owned_lines,
    with_emptied_files,
)
from dovetail.modularity.tasks import PACKAGE
from dovetail.module import Module

# Fields that parents may declare although a child config declares them too, because the parent
# passes them on. Any other field of both is one that the parent has flattened.
SHARED_FIELDS: dict[str, tuple[str, ...]] = {
    "in_axis": ("LowRankLinear",),
    "in_features": ("LowRankLinear",),
    # The layer's own cache, not that of its child.
    "cache": (
        "GatedDelta",
        "Mamba2",
    ),
    "mu_dtype": ("Muon",),
    "num_experts": (
        "MixtureOfExperts",
        "TopKRouter",
    ),
    "num_heads": (
        "BaseAttention",
        "Attention",
        "GatedDelta",
        "LatentAttention",
        "Mamba2",
    ),
    "out_axis": ("LowRankLinear",),
    "out_features": ("LowRankLinear",),
    "top_k": (
        "MixtureOfExperts",
        "TopKRouter",
    ),
    "total_steps": ("Learner",),
    "value_width": ("LatentAttention",),
    "vocab_size": (
        "CausalLM",
        "Decoder",
    ),
    "width": (
        "MultiTokenHead",
        "BaseAttention",
        "Attention",
        "OutputNorm",
        "CausalLM",
        "Decoder",
        "DifferentialAttention",
        "HasFinalNorm",
        "GatedDelta",
        "LatentAttention",
        "Mamba2",
        "MixtureOfExperts",
        "MultiTokenLoss",
        "BaseResidual",
        "ParallelBlock",
        "PostNorm",
        "PreNorm",
        "SandwichNorm",
        "SharedStack",
        "Stack",
        "TransformerBlock",
    ),
}


def foreign_references(by_name: Mapping[str, Feature], package: Path = PACKAGE) -> list[SourceLine]:
    """Returns the lines that name a class of a feature in code that the feature does not own."""
    sources = {str(path.relative_to(package)): path.read_text() for path in package.rglob("*.py")}
    count = Counter(name for source in sources.values() for name in _public_classes(source))
    owners = {
        name: feature
        for feature in by_name.values()
        for name in _owned_classes(feature, package, sources)
        if count[name] == 1  # otherwise the name is ambiguous
    }
    owned = {
        feature.name: with_emptied_files(package, owned_code(feature, by_name))
        for feature in owners.values()
    }
    references = set()
    for file, source in sources.items():
        if file.partition("/")[0] in (*COMPOSING, "modularity") or file == OLD_NAMES:
            continue
        lines = source.splitlines()
        for number, name in _names(ast.parse(source)):
            own = owned[owners[name].name] if name in owners else (file,)
            if not is_inside(file, own) and number not in owned_lines(source, file, own):
                references.add(SourceLine(file, number, lines[number - 1].strip()))
    return sorted(references)


def _owned_classes(feature: Feature, package: Path, sources: Mapping[str, str]) -> set[str]:
    """Returns the public classes in the code that a feature itself owns."""
    owned = with_emptied_files(package, feature.files)
    single = {code.partition(":")[2] for code in owned if ":" in code}
    owned_files = (source for file, source in sources.items() if is_inside(file, owned))
    return single.union(*map(_public_classes, owned_files))


def flattened_fields() -> list[str]:
    """Returns the fields of configs that a child config declares too, or that are named after one.

    `SHARED_FIELDS` lists the exceptions. A field of another type means something else, and a
    wrapper has the sizes of what it wraps.
    """
    flattened = set()
    for component in _subclasses(Component):
        config: Any = component.__dict__.get("Config")
        if config is None or not component.__module__.startswith("dovetail."):
            continue
        for child_name, child in _default_children(config):
            for field in _own_fields(config):
                if _is_flattened(component, child_name, type(child), field):
                    flattened.add(
                        f"{component.__module__}:{component.__name__}.{field} (of {child_name})"
                    )
    return sorted(flattened)


def _is_flattened(component: Any, child_name: str, child: type[Config[Any]], field: str) -> bool:
    """Says whether a field flattens a field `x` of a child: it is named `x`, or `<child>_x`."""
    if field.removeprefix(f"{child_name}_") in _own_fields(child) - {field}:
        return True
    if field not in _own_fields(child) or component.__name__ in SHARED_FIELDS.get(field, ()):
        return False
    return bool(get_type_hints(component.Config)[field] == get_type_hints(child)[field])


def _default_children(config: Any) -> Iterator[tuple[str, Config[Any]]]:
    for name, field in config.fields().items():
        if isinstance(field.default, Config) and not field.wraps:
            yield name, field.default


def _own_fields(config: Any) -> set[str]:
    """Returns the fields that a config declares beyond those of all modules."""
    return set(config.fields()) - set(Module.Config.fields())


def _subclasses(base: type[Any]) -> set[type[Any]]:
    return {each for child in base.__subclasses__() for each in {child, *_subclasses(child)}}


def _public_classes(source: str) -> set[str]:
    return {
        node.name
        for node in ast.parse(source).body
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_")
    }


def _names(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Yields every name that a file uses, and every string that may be a class, with its line."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
            yield node.lineno, node.id
        elif isinstance(node, ast.alias):
            yield node.lineno, node.name.rpartition(".")[2]
        elif isinstance(node, ast.Attribute):
            yield node.lineno, node.attr
        elif isinstance(node, ast.Constant) and str(node.value)[:1].isupper():
            yield node.lineno, str(node.value)
