"""What several verbs share: naming an experiment and changing it on the command line."""

from __future__ import annotations

import argparse
import contextlib
import importlib
import sys
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dovetail.config import (
    ConfigError,
    apply_modifier,
    apply_overrides,
    collect_reports,
    identity,
    import_package,
    modifiers,
)
from dovetail.experiments import experiments, find_experiment
from dovetail.targets import Machine, Targeted, apply_target, example_targets

if TYPE_CHECKING:
    from dovetail.runtime import RunFolder
    from dovetail.trainer import Trainer

# An installed package that names a module in this group of entry points is imported by itself.
ENTRY_POINTS = "dovetail"


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
        """Returns what the run folder notes: name, target, and all packages with a part in it."""
        noted: dict[str, Any] = {
            "experiment": self.name,
            "imports": self.imports,
            "entry_points": self.entry_points,
        }
        return noted if self.machine is None else noted | {"target": self.machine.name}

    def run_folder(self) -> Path:
        """Returns `runs/<experiment>`, with a hash where the run is another than the named one."""
        from dovetail.runtime import short_hash

        changed = identity(self.base) != identity(self.config)
        return Path("runs") / (f"{self.name}-{short_hash(self.config)}" if changed else self.name)


def add_experiment_arguments(parser: argparse.ArgumentParser, name: str = "experiment") -> None:
    """Adds the name of an experiment, and the ways to change it."""
    argument: Any = parser.add_argument(
        name, metavar="EXPERIMENT", help="see `dovetail config list`"
    )
    argument.completer = complete_experiments
    parser.add_argument(
        "overrides",
        nargs="*",
        metavar="key.path=value",
        help="sets a value, for example model.decoder.stack.num_layers=6",
    )
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
        help="the seed of the first parameters and of dropout; the order of the data is input.seed",
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
        help="imports your own package, with its parts, families, modifiers and experiments",
    )


def choose(arguments: argparse.Namespace, name: str | None = None) -> Chosen:
    """Returns the experiment: as named, then --with, then the target's rule, then key=value."""
    entry_points = import_packages(arguments.imports)
    name = name or arguments.experiment
    _refuse_run_folder(name)
    base = find_experiment(name).config()
    config = base
    with collect_reports() as reports:
        for text in arguments.modifiers:
            config = apply_modifier(config, text)
    told = [str(report) for report in reports]
    overrides, machine = _overrides(arguments), None
    if arguments.target is not None:
        targeted = _fitted(config, arguments.target, overrides)
        config, machine = targeted.config, targeted.machine
        told.append(targeted.told(but=[text.partition("=")[0].strip() for text in overrides]))
    config = apply_overrides(config, overrides)
    return Chosen(name, base, config, arguments.imports, entry_points, told, machine)


def _overrides(arguments: argparse.Namespace) -> list[str]:
    """Returns what was typed as key=value, and the options that are short for that."""
    options = {name: getattr(arguments, name) for name in ("seed", "steps")}
    typed = list(getattr(arguments, "overrides", []))
    return typed + [f"{name}={value}" for name, value in options.items() if value is not None]


def _fitted(config: Trainer.Config, target: str, overrides: list[str]) -> Targeted:
    """Applies the target's rule to the experiment with the sizes that it will have.

    A rule decides by sizes, and key=value may change those. So it sees them set already; after the
    rule they are set again, for they have the last word. What can only be set after the rule, in a
    part that the rule brings, is left for then.
    """
    for override in overrides:
        with contextlib.suppress(ConfigError):  # a real mistake is told when it is set again
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
    """Imports what the user named. What only the run folder names is not imported: it runs code."""
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


def complete_targets(**_: Any) -> list[str]:
    """Returns one target of each kind for tab completion; loads no JAX."""
    return example_targets()


def complete_modifiers(**_: Any) -> list[str]:
    """Returns the modifiers that are known without importing anybody's package."""
    experiments()
    return list(modifiers())


def load_all_parts() -> None:
    """Imports every room whose parts a config text may name."""
    for room in ("data", "layers", "learner", "models", "parallel", "runtime", "trainer"):
        importlib.import_module(f"dovetail.{room}")


def _refuse_run_folder(name: str) -> None:
    """Says what to do with a run folder that stands where an experiment is wanted."""
    if name in experiments() or not (Path(name) / "run.json").is_file():
        return
    from dovetail.runtime import RunFolder

    folder = Path(name)
    trained = RunFolder(folder).about().get("experiment")
    message = f"{name} is a run folder, and here an experiment is wanted. "
    if trained in experiments():
        where = "" if folder == Path("runs") / trained else f" --run {name}"
        message += (
            f"It is a run of {trained}: `dovetail train {trained}{where}`, with the changes that "
            "it was begun with, goes on with it. "
        )
    raise ConfigError(
        f"{message}`dovetail generate {name}` writes text with it, and `dovetail train EXPERIMENT "
        f"--with from-run:path={name}` begins from what it has learned."
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
