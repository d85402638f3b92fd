"""Arguments of several verbs: an experiment, and the changes to it."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from dovetail.api import Experiment
from dovetail.cli.output import check_number
from dovetail.config import ConfigError, import_packages, modifiers
from dovetail.experiments import (
    ConfigKeys,
    cache_keys,
    cached_keys,
    did_you_mean_keys,
    experiments,
    find_experiment,
)
from dovetail.targets import example_targets

# The options that are short for a key of the trainer, with the range that it allows.
_LIMITS = {"seed": (-(2**31), 2**32 - 1), "steps": (1, 2**31 - 1)}


def add_experiment_arguments(
    parser: argparse.ArgumentParser, words: str = "key.path=value"
) -> None:
    """Adds the name of an experiment, and the ways to change it."""
    argument: Any = parser.add_argument(
        "experiment", metavar="EXPERIMENT", help="see `dovetail config list`"
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
    entry_points = import_packages(arguments.imports)
    name = name or arguments.experiment
    _refuse_run_folder(name)
    chosen = Experiment(
        name,
        features=tuple(arguments.modifiers),
        target_name=arguments.target,
        overrides=tuple(_overrides(arguments)),
        imports=tuple(arguments.imports),
        entry_points=tuple(entry_points),
    )
    _ = chosen.resolved  # a mistake is an error now
    return chosen


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
    return cached_keys(experiment) or cache_keys(experiment, find_experiment(experiment).config())


def complete_targets(**_: Any) -> list[str]:
    """Returns one target of each kind for tab completion; loads no JAX."""
    return example_targets()


def complete_modifiers(**_: Any) -> list[str]:
    """Returns the modifiers that are known without importing anybody's package."""
    experiments()
    return list(modifiers())


def _refuse_run_folder(name: str) -> None:
    """Raises a ConfigError for a run folder in place of an experiment, with what to do."""
    if name in experiments() or not (Path(name) / "run.json").is_file():
        return
    from dovetail.run import summarize_run

    folder = Path(name)
    trained = summarize_run(folder).experiment
    message = f"{name} is a run folder, not an experiment. "
    if trained in experiments():
        where = "" if folder == Path("runs") / trained else f" --run {name}"
        message += (
            f"It is a run of {trained}: `dovetail train {trained}{where}`, with the same "
            "changes, continues it. "
        )
    raise ConfigError(
        f"{message}`dovetail generate {name}` generates text with it, and `dovetail train "
        f"EXPERIMENT --with from-run:path={name}` starts from its parameters."
    )
