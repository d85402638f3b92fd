"""The list of experiments: names first, so that listing them loads neither JAX nor any model.

An experiment is a function that returns a trainer's config, in a file of its own. Such a file
imports models and layers inside the function, because the file itself is loaded whenever names are
listed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from dovetail.config import Registry

if TYPE_CHECKING:
    from dovetail.trainer import Trainer

Maker = Callable[[], "Trainer.Config"]


@dataclass(frozen=True)
class ExperimentEntry:
    """A named, runnable experiment.

    Attributes:
        name: as on the command line.
        about: a one-line description.
        family: its group in listings: a model family, or another word.
        config: returns its config.
        tiny: returns the same composition at sizes that a test can run.
        variant_of: the experiment that it is a variant of, if it is one.
        changes: what a variant changes, as `--with` takes it.
        source: the module or file that defines it.
    """

    name: str
    about: str
    config: Maker
    tiny: Maker
    variant_of: str = ""
    changes: tuple[str, ...] = ()
    family: str = ""
    source: str = ""


_experiments: Registry[ExperimentEntry] = Registry(
    "experiment",
    "dovetail.features",
    "dovetail.experiments",
    advice="`dovetail config list` shows all; --import adds those of your own package.",
)


def experiment(
    name: str,
    about: str,
    tiny: Maker,
    variant_of: str = "",
    changes: tuple[str, ...] = (),
    family: str = "",
    source: str = "",
) -> Callable[[Maker], Maker]:
    """Registers an experiment under a name, with a tiny form for tests.

    See `ExperimentEntry` for the arguments. The default `source` is the function's module.
    """

    def register(make: Maker) -> Maker:
        home = source or str(getattr(make, "func", make).__module__)  # also of a functools.partial
        entry = ExperimentEntry(name, about, make, tiny, variant_of, changes, family, home)
        _experiments.register(name, entry, home)
        return make

    return register


def experiments() -> dict[str, ExperimentEntry]:
    """Returns all experiments by name: this folder's, and those of packages that were imported."""
    return _experiments.all()


def find_experiment(name: str) -> ExperimentEntry:
    """Returns an experiment by name; an unknown one is an error that names the nearest."""
    return _experiments.find(name)
