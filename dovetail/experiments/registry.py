"""The list of experiments: names first, so that listing them loads neither JAX nor any model.

An experiment is a function that returns a trainer's config, in a file of its own. Such a file
imports models and layers inside the function, because the file itself is loaded whenever names are
listed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from dovetail.config import ConfigError, did_you_mean, import_submodules

if TYPE_CHECKING:
    from dovetail.trainer import Trainer

Maker = Callable[[], "Trainer.Config"]


@dataclass(frozen=True)
class Experiment:
    """A named, runnable experiment.

    Attributes:
        name: as on the command line.
        about: one line on it.
        make: returns its config.
        make_tiny: returns the same composition at sizes that a test can run.
        variant_of: the experiment that it is a variant of, if it is one.
        changes: what a variant changes, as `--with` takes it.
    """

    name: str
    about: str
    make: Maker
    make_tiny: Maker
    variant_of: str = ""
    changes: tuple[str, ...] = ()

    def config(self) -> Trainer.Config:
        """Returns the experiment's config."""
        return self.make()

    def tiny(self) -> Trainer.Config:
        """Returns the same composition at sizes that a test can run."""
        return self.make_tiny()


_experiments: dict[str, Experiment] = {}


def experiment(
    name: str, about: str, tiny: Maker, variant_of: str = "", changes: tuple[str, ...] = ()
) -> Callable[[Maker], Maker]:
    """Registers an experiment under a name, with a tiny form for tests."""

    def register(make: Maker) -> Maker:
        before = _experiments.get(name)
        if before is not None and _module(before.make) != _module(make):
            raise ConfigError(
                f"The experiment {name!r} is defined in {_module(before.make)} and again in "
                f"{_module(make)}. Rename one."
            )
        _experiments[name] = Experiment(name, about, make, tiny, variant_of, changes)
        return make

    return register


def _module(make: Maker) -> str:
    """Names the file that an experiment is from, also where it is made of a function by partial."""
    return str(getattr(make, "func", make).__module__)


def experiments() -> dict[str, Experiment]:
    """Returns all experiments by name: this folder's, and those of packages that were imported."""
    import_submodules("dovetail.features")
    import_submodules("dovetail.experiments")
    return dict(sorted(_experiments.items()))


def find_experiment(name: str) -> Experiment:
    """Returns an experiment by name; an unknown one is an error that names the nearest."""
    known = experiments()
    if name not in known:
        raise ConfigError(
            f"There is no experiment {name!r}. {did_you_mean(name, known)} "
            "`dovetail config list` shows all; --import adds those of your own package."
        )
    return known[name]
