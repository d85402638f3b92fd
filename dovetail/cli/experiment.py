"""What several verbs share: naming an experiment and changing it on the command line."""

from __future__ import annotations

import argparse
import importlib
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dovetail.config import (
    apply_modifier,
    apply_overrides,
    collect_reports,
    identity,
    import_package,
)
from dovetail.experiments import experiments, find_experiment

if TYPE_CHECKING:
    from dovetail.trainer import Trainer


@dataclass(frozen=True)
class Chosen:
    """An experiment as the user asked for it."""

    name: str
    base: Trainer.Config
    config: Trainer.Config
    imports: list[str]
    reports: list[str]

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
    parser.add_argument(
        "--with",
        dest="modifiers",
        action="append",
        default=[],
        metavar="NAME:key=value,...",
        help="applies a registered modifier; may be repeated",
    )
    parser.add_argument(
        "--import",
        dest="imports",
        action="append",
        default=[],
        metavar="PACKAGE",
        help="imports your own package, with its parts, modifiers and experiments",
    )
    parser.add_argument("--seed", type=int, help="the seed of parameters and dropout")
    parser.add_argument("--steps", type=int, help="the number of training steps")


def choose(arguments: argparse.Namespace, name: str | None = None) -> Chosen:
    """Returns the experiment: as named, then --with, then key=value."""
    import_packages(arguments.imports)
    name = name or arguments.experiment
    base = find_experiment(name).config()
    config = base
    with collect_reports() as reports:
        for text in arguments.modifiers:
            config = apply_modifier(config, text)
    overrides = list(getattr(arguments, "overrides", []))
    options = {name: getattr(arguments, name) for name in ("seed", "steps")}
    overrides += [f"{name}={value}" for name, value in options.items() if value is not None]
    config = apply_overrides(config, overrides)
    return Chosen(name, base, config, arguments.imports, [str(report) for report in reports])


def import_packages(names: list[str]) -> None:
    """Imports the packages that the user named, from the working folder too."""
    if names and str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))
    for name in names:
        import_package(name)


def complete_experiments(**_: Any) -> list[str]:
    """Returns the names for tab completion; loads no JAX."""
    return list(experiments())


def load_all_parts() -> None:
    """Imports every room whose parts a config text may name."""
    for room in ("data", "layers", "learner", "models", "parallel", "runtime", "trainer"):
        importlib.import_module(f"dovetail.{room}")
