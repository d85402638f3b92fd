"""`config list`: experiments by family, modifiers by kind, and the forms of targets."""

from __future__ import annotations

import argparse
import inspect
from collections.abc import Callable
from typing import Any

from dovetail.cli.config_targets import target_forms
from dovetail.cli.experiment import add_import_argument
from dovetail.cli.output import print_json
from dovetail.config import ConfigError, did_you_mean, import_packages, modifiers
from dovetail.experiments import ExperimentEntry, experiments
from dovetail.features import features
from dovetail.utils import format_table, plural


def add_list(actions: Any) -> None:
    """Declares the action."""
    listing = actions.add_parser("list", help="all experiments, modifiers and targets")
    listing.add_argument(
        "word", nargs="?", default="", metavar="WORD", help="list only what contains this word"
    )
    add_import_argument(listing)
    listing.set_defaults(handler=_list)


def _list(arguments: argparse.Namespace) -> int:
    import_packages(arguments.imports)
    word = arguments.word.lower()
    matching = {
        name: each
        for name, each in experiments().items()
        if word in f"{name} {each.about} {each.family}".lower()
    }
    changes = {
        name: change
        for name, change in modifiers().items()
        if word in f"{name} {_about(change)} {_kind(name, change)}".lower()
    }
    targets = {name: text for name, text in target_forms().items() if word in name}
    if not (matching or changes or targets):
        names = [*experiments(), *modifiers(), *target_forms()]
        raise ConfigError(f"config list: nothing contains {word!r}. {did_you_mean(word, names)}")
    if arguments.json:
        listed = {name: each.about for name, each in matching.items()}
        print_json({"experiments": listed, "modifiers": list(changes), "targets": list(targets)})
        return 0
    _print_experiments(matching, show_variants=bool(word))
    if changes:
        print("\nmodifiers, for --with:")
        rows = {name: (_usage(name, each), _about(each)) for name, each in changes.items()}
        _print_groups(rows, {name: _kind(name, each) for name, each in changes.items()})
    if targets:
        print("\ntargets, for --target (2x in front means two slices):")
        print(format_table(list(targets.items()), indent="  "))
    return 0


def _print_experiments(matching: dict[str, ExperimentEntry], show_variants: bool) -> None:
    """Prints experiments by family; without a filter, variants would be hundreds of lines."""
    sizes = {name: each for name, each in matching.items() if show_variants or not each.variant_of}
    rows = {name: (name, each.about) for name, each in sizes.items()}
    _print_groups(rows, {name: each.family or "others" for name, each in sizes.items()})
    variants = [] if show_variants else [each for each in matching.values() if each.variant_of]
    if variants:
        suffixes = sorted({each.name.removeprefix(each.variant_of) for each in variants})
        print(
            f"\nand {plural(len(variants), 'variant')}: NAME{', NAME'.join(suffixes)} "
            "(`dovetail config list NAME` shows those of one)"
        )


def _print_groups(rows: dict[str, tuple[str, str]], groups: dict[str, str]) -> None:
    """Prints rows of a name and a text under the heading of their group, in aligned columns."""
    ordered = sorted(rows, key=lambda name: groups[name])
    lines = format_table([rows[name] for name in ordered], indent="  ").splitlines()
    before = None
    for name, line in zip(ordered, lines, strict=True):
        if groups[name] != before:
            before = groups[name]
            print(before)
        print(line)


def _usage(name: str, modifier: Callable[..., Any]) -> str:
    """Returns a modifier with its arguments, as --with takes them."""
    parameters = list(inspect.signature(modifier).parameters.values())[1:]
    needed = [
        f"{each.name}={'...' if each.default is each.empty else each.default}"
        for each in parameters
    ]
    return f"{name}:{','.join(needed)}" if needed else name


def _about(modifier: Callable[..., Any]) -> str:
    return (inspect.getdoc(modifier) or "").partition("\n")[0]


def _kind(name: str, modifier: Callable[..., Any]) -> str:
    """Returns the kind of a feature; of another modifier, its file's name or the user's package."""
    if name in features():
        kind = features()[name].kind
    else:
        package, _, module = modifier.__module__.partition(".")
        kind = module.rpartition(".")[2].replace("_", "-") if package == "dovetail" else package
    return kind.replace("-and-", " and ")
