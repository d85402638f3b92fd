"""Arguments of several verbs: an experiment, and the changes to it."""

from __future__ import annotations

import argparse
import contextlib
import importlib
import sys
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dovetail.cli.output import check_number
from dovetail.config import (
    ConfigError,
    apply_modifier,
    apply_overrides,
    collect_reports,
    identity,
    import_package,
    modifiers,
)
from dovetail.experiments import (
    ConfigKeys,
    cache_keys,
    cached_keys,
    did_you_mean_keys,
    experiments,
    find_experiment,
)
from dovetail.targets import AppliedTarget, Machine, apply_target, example_targets

if TYPE_CHECKING:
    from dovetail.runtime import RunFolder
    from dovetail.trainer import Trainer

# An installed package that names a module in this group of entry points is imported automatically.
ENTRY_POINTS = "dovetail"

# The options that are short for a key of the trainer, with the range that it allows.
_LIMITS = {"seed": (-(2**31), 2**32 - 1), "steps": (1, 2**31 - 1)}


@dataclass(frozen=True)
class Chosen:
    """An experiment as the user asked for it."""

    name: str
    base: Trainer.Config
    config: Trainer.Config
    imports: list[str]
    entry_points: list[str]
    reports: list[str]
    machine: Machine | None = None

    def about(self) -> dict[str, Any]:
        """Returns what run.json records: name, target, and the imported packages."""
        record: dict[str, Any] = {
            "experiment": self.name,
            "imports": self.imports,
            "entry_points": self.entry_points,
        }
        return record if self.machine is None else record | {"target": self.machine.name}

    def run_folder(self) -> Path:
        """Returns `runs/<experiment>`, with a hash if its identity was changed."""
        from dovetail.runtime import short_hash

        changed = identity(self.base) != identity(self.config)
        return Path("runs") / (f"{self.name}-{short_hash(self.config)}" if changed else self.name)


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


def choose(arguments: argparse.Namespace, name: str | None = None) -> Chosen:
    """Returns the experiment: as named, then --with, then the target's rule, then key=value."""
    entry_points = import_packages(arguments.imports)
    name = name or arguments.experiment
    _refuse_run_folder(name)
    overrides = _overrides(arguments)
    found = find_experiment(name)
    # Packages and modifiers change which keys there are, so the cache is for plain experiments.
    is_plain = not (arguments.imports or entry_points)
    keys = cached_keys(name) if is_plain else None
    if keys is not None and not (arguments.modifiers or arguments.target):
        keys.check(overrides)
    base = found.config()
    if is_plain and keys is None:
        cache_keys(name, base)
    config = base
    with collect_reports() as reports:
        for text in arguments.modifiers:
            config = apply_modifier(config, text)
    shown = [str(report) for report in reports]
    machine = None
    if arguments.target is not None:
        targeted = _fitted(config, arguments.target, overrides)
        config, machine = targeted.config, targeted.machine
        shown.append(
            targeted.summary(exclude=[text.partition("=")[0].strip() for text in overrides])
        )
    ConfigKeys.of(config).check(overrides)
    config = apply_overrides(config, overrides)
    return Chosen(name, base, config, arguments.imports, entry_points, shown, machine)


def _overrides(arguments: argparse.Namespace) -> list[str]:
    """Returns what was typed as key=value, and the options that are short for that."""
    options = {name: getattr(arguments, name) for name in _LIMITS}
    for name, limits in _LIMITS.items():
        check_number(f"--{name}", options[name], *limits)
    typed = list(getattr(arguments, "overrides", []))
    return typed + [f"{name}={value}" for name, value in options.items() if value is not None]


def _fitted(config: Trainer.Config, target: str, overrides: list[str]) -> AppliedTarget:
    """Applies the target's rule to the experiment with the sizes that it will have.

    A rule depends on sizes, which key=value may change. So overrides are applied before the rule,
    and again after it, because they take precedence. Those that only apply after the rule, to a
    component that it adds, fail the first time.
    """
    for override in overrides:
        with contextlib.suppress(ConfigError):  # a real mistake is reported the second time
            config = apply_overrides(config, [override])
    return apply_target(config, target)


def import_packages(names: list[str]) -> list[str]:
    """Imports the installed packages that ask for it, and those that the user named.

    A named one may be in the working folder. Returns the modules of the first kind.
    """
    found = [_import_entry_point(point) for point in metadata.entry_points(group=ENTRY_POINTS)]
    if names and str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))
    for name in names:
        import_package(name)
    return sorted(set(found))


def require_imports(folder: RunFolder, imports: list[str]) -> None:
    """Imports what the user named; never what only the run folder names, because that runs code."""
    known = {*imports, *import_packages(imports)}
    missing = [name for name in folder.about().get("imports", []) if name not in known]
    if missing:
        options = " ".join(f"--import {name}" for name in missing)
        raise ConfigError(f"{folder.path}: this run was trained with {options}; pass it.")


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


def load_all_components() -> None:
    """Imports every subpackage whose components config text may name."""
    for subpackage in ("data", "layers", "learner", "models", "parallel", "runtime", "trainer"):
        importlib.import_module(f"dovetail.{subpackage}")


def _refuse_run_folder(name: str) -> None:
    """Raises a ConfigError for a run folder in place of an experiment, with what to do."""
    if name in experiments() or not (Path(name) / "run.json").is_file():
        return
    from dovetail.runtime import RunFolder

    folder = Path(name)
    trained = RunFolder(folder).about().get("experiment")
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


def _import_entry_point(point: metadata.EntryPoint) -> str:
    try:
        import_package(point.module)
    except ConfigError as error:
        package = point.dist.name if point.dist is not None else "an installed package"
        raise ConfigError(
            f"{package} asks for its module {point.module} to be imported (entry point "
            f"{point.name!r} of group {ENTRY_POINTS!r}), which fails: {error.__cause__}. Repair or "
            "uninstall it."
        ) from error
    return point.module
