"""Arguments of several verbs: an experiment, and the changes to it."""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path
from typing import Any

from dovetail.api import Experiment, data_feature
from dovetail.api import experiment as named_experiment
from dovetail.cli.output import check_number
from dovetail.config import ConfigError, modifiers
from dovetail.experiments import (
    ConfigKeys,
    cache_keys,
    cached_keys,
    did_you_mean_keys,
    experiments,
    find_experiment,
)
from dovetail.targets import example_targets
from dovetail.utils import Progress

# The options that are short for a key of the trainer, with the range that it allows.
_LIMITS = {"seed": (-(2**31), 2**32 - 1), "steps": (1, 2**31 - 1)}

# Options of other programs that name the data.
_MEANS_DATA = ("corpus", "dataset", "datasets", "files", "train-data", "train_data")


def add_experiment_arguments(
    parser: argparse.ArgumentParser, words: str = "key.path=value"
) -> None:
    """Adds the name of an experiment, and the ways to change it."""
    argument: Any = parser.add_argument(
        "experiment",
        metavar="EXPERIMENT",
        help="see `dovetail config list`; or a run folder, to continue that run",
    )
    argument.completer = complete_experiments
    argument = parser.add_argument(
        "overrides",
        nargs="*",
        default=[],
        metavar=words,
        help="sets a value, for example model.decoder.stack.num_layers=6",
    )
    argument.completer = complete_overrides
    add_change_arguments(parser)


def add_change_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the options that change an experiment."""
    parser.add_argument(
        "--data",
        metavar="PATH,...",
        help="trains on your own files: a file, a folder, a pattern or a URL; see docs/data.md",
    )
    argument: Any = parser.add_argument(
        "--with",
        dest="modifiers",
        action="append",
        default=[],
        metavar="NAME:key=value,...",
        help="applies a registered modifier; may be repeated",
    )
    argument.completer = complete_modifiers
    argument = parser.add_argument(
        "--target",
        metavar="MACHINE",
        help="fits the experiment to a machine, such as tpu-v5p-512; see `dovetail config targets`",
    )
    argument.completer = complete_targets
    add_import_argument(parser)
    parser.add_argument(
        "--seed",
        type=int,
        help="the seed of initialization and dropout; the order of the data is input.seed",
    )
    parser.add_argument("--steps", type=int, help="the number of training steps")


def add_import_argument(parser: argparse.ArgumentParser) -> None:
    """Adds the option that names a user's own package."""
    parser.add_argument(
        "--import",
        dest="imports",
        action="append",
        default=[],
        metavar="PACKAGE",
        help="imports your own package: its components, model families, modifiers, experiments",
    )


def choose(arguments: argparse.Namespace, name: str | None = None) -> Experiment:
    """Returns the experiment that the user asked for, with its changes applied."""
    name = name or arguments.experiment
    chosen = replace(
        named_experiment(name, imports=arguments.imports),
        features=(*_data_feature(arguments.data), *arguments.modifiers),
        target_name=arguments.target,
        overrides=tuple(_overrides(arguments)),
    )
    _ = chosen.resolved  # a mistake is an error now
    return chosen


def load_experiment(arguments: argparse.Namespace, name: str | None = None) -> Experiment:
    """Does what `choose` does, and shows that it is loading."""
    with Progress(name or arguments.experiment, enabled=not arguments.json) as progress:
        progress.stage("loading")
        return choose(arguments, name)


def _data_feature(paths: str | None) -> list[str]:
    """Returns the feature that --data is short for."""
    if paths is None:
        return []
    files = tuple(filter(None, (path.strip() for path in paths.split(","))))
    if not files:
        raise ConfigError("--data: expected a file, a folder, a pattern or a URL, got nothing.")
    return [data_feature(files)]


def _overrides(arguments: argparse.Namespace) -> list[str]:
    """Returns what was typed as key=value, and the options that are short for that."""
    options = {name: getattr(arguments, name) for name in _LIMITS}
    for name, limits in _LIMITS.items():
        check_number(f"--{name}", options[name], *limits)
    typed = list(getattr(arguments, "overrides", []))
    return typed + [f"{name}={value}" for name, value in options.items() if value is not None]


def local_folder(text: str) -> Path:
    """Reads the name of a folder to be made, for argparse."""
    if "://" in text:
        raise argparse.ArgumentTypeError(f"expected a folder on this machine, got {text!r}")
    return Path(text)


def complete_experiments(**_: Any) -> list[str]:
    """Returns the names for tab completion; loads no JAX."""
    return list(experiments())


def suggest_keys(experiment: str, option: str, value: str) -> str:
    """Returns the keys of an experiment that an unknown option may stand for, as advice."""
    if experiment not in experiments():
        return ""
    if option in _MEANS_DATA:
        return f"Did you mean --data {value}?".replace(" ?", "?")
    paths = _keys(experiment).suggest(option.replace("-", "_"))
    return did_you_mean_keys(paths, value) if paths else ""


def complete_overrides(prefix: str, parsed_args: argparse.Namespace, **_: Any) -> list[str]:
    """Returns key paths with `=`, or after one the values that its type allows."""
    if getattr(parsed_args, "experiment", None) not in experiments():
        return []
    keys = _keys(parsed_args.experiment)
    path, equals, _typed = prefix.partition("=")
    if equals:
        return [f"{path}={word}" for word in keys.choices(path)]
    return [f"{each}=" for each in keys.paths()]


def _keys(experiment: str) -> ConfigKeys:
    """Returns the keys of an experiment; only the first use imports JAX, to cache them."""
    keys = cached_keys(experiment)
    if keys is not None and keys.is_current:
        return keys
    return cache_keys(experiment, find_experiment(experiment).config())


def complete_targets(**_: Any) -> list[str]:
    """Returns one target of each kind for tab completion; loads no JAX."""
    return example_targets()


def complete_modifiers(**_: Any) -> list[str]:
    """Returns the modifiers that are known without importing anybody's package."""
    experiments()
    return list(modifiers())
