"""Parameter initialization of a run: random, or loaded from the checkpoint of another run.

It is used once, while the run has no checkpoint of its own. Loaded parameters replace the random
ones of the same path; others, such as an adapter's, stay as initialized.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Protocol

import jax

from dovetail.config import REQUIRED, Component, ConfigError, ConfigOf, wraps
from dovetail.learner import TrainState
from dovetail.parallel import use_placement
from dovetail.runtime import RunFolder, abstract_state, has_parameters, read_parameters
from dovetail.trainer.program import Program

Arrays = dict[str, jax.Array]
Requested = Mapping[str, jax.ShapeDtypeStruct]
Paths = dict[str, str]


class Initialization(Protocol):
    """Initializes parameters and variables."""

    def check(self) -> None:
        """Raises a ConfigError if there is nothing to load; reads no array."""
        ...

    def arrays(self, like: Requested, log: Callable[[str], None]) -> Arrays:
        """Loads those of the requested parameters and variables that it has, by path."""
        ...

    def copies(self, like: Requested) -> Paths:
        """Returns, by path, which requested arrays are copies of which others."""
        ...


class RandomInit(Component):
    """Initializes every parameter randomly, with its initializer."""

    class Config(Component.Config["RandomInit"]):
        """Nothing to choose."""

    def check(self) -> None:
        """Does nothing."""

    def arrays(self, like: Requested, log: Callable[[str], None]) -> Arrays:
        """Loads none."""
        return {}

    def copies(self, like: Requested) -> Paths:
        """Copies none."""
        return {}


class InitFromRun(Component):
    """Loads parameters by path from the checkpoint of another run; its EMA where it has one."""

    class Config(Component.Config["InitFromRun"]):
        """The run."""

        run: str = REQUIRED
        """Its folder, such as runs/tiny-lm."""

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self.name, self.folder = config.locate("run"), RunFolder(Path(config.run))

    def check(self) -> None:
        """Raises a ConfigError if the run or its checkpoint is missing."""
        if not has_parameters(self.folder):
            there = "has no checkpoint" if self.folder.path.is_dir() else "does not exist"
            raise ConfigError(
                f"{self.name}: the run folder {self.folder.path} {there}. Train it first, or name "
                "another; a relative path is relative to the working directory."
            )

    def arrays(self, like: Requested, log: Callable[[str], None]) -> Arrays:
        """Reads the newest good parameters, each array directly to its shards."""
        self.check()
        found = read_parameters(self.folder, like)
        step, arrays = found if found is not None else (0, {})
        log(
            f"initialized from step {step} of {self.folder.path}: loaded {len(arrays)} parameters; "
            f"{len(like) - len(arrays)} keep their initialization"
        )
        return arrays

    def copies(self, like: Requested) -> Paths:
        """Copies none."""
        return {}


class InitSubmoduleFromRun(Component):
    """Loads a submodule from the model of another run; `rest` initializes the others."""

    class Config(Component.Config["InitSubmoduleFromRun"]):
        """The submodule, and the run."""

        submodule: str = REQUIRED
        """Its path, such as loss/teacher."""
        source: str = REQUIRED
        """The folder of the run; its parameter x becomes x of the submodule."""
        rest: ConfigOf[Initialization] = wraps(RandomInit.Config())

        @property
        def run(self) -> str | None:
            """The run that `rest` loads from, if any."""
            return getattr(self.rest, "run", None)

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self.name, self.submodule = config.locate("source"), config.submodule
        self.source, self.rest = InitFromRun.Config(run=config.source).build(), config.rest.build()

    def check(self) -> None:
        """Raises a ConfigError if a run or its checkpoint is missing."""
        self.source.check()
        self.rest.check()

    def arrays(self, like: Requested, log: Callable[[str], None]) -> Arrays:
        """Loads both. The submodule must be complete: a missing parameter would stay random."""
        prefix = f"{self.submodule}/"
        wanted = {path.removeprefix(prefix): like[path] for path in like if path.startswith(prefix)}
        if not wanted:
            raise ConfigError(f"{self.name}: the model has no parameters below {self.submodule!r}.")
        found = self.source.arrays(wanted, lambda text: log(f"{self.submodule} {text}"))
        if missing := sorted(wanted.keys() - found.keys()):
            raise ConfigError(
                f"{self.name}: {self.submodule} is loaded from {self.source.folder.path}, which "
                f"has no {missing[0]!r}. It must be a run of the same model as the submodule."
            )
        others = {path: like[path] for path in like if not path.startswith(prefix)}
        own = {f"{prefix}{path}": array for path, array in found.items()}
        return {**self.rest.arrays(others, log), **own}

    def copies(self, like: Requested) -> Paths:
        """Returns the copies of `rest`."""
        return self.rest.copies(like)


class InitSubmoduleFromModel(Component):
    """Copies the model's initialization to a submodule: its parameter x is the model's x."""

    class Config(Component.Config["InitSubmoduleFromModel"]):
        """The submodule, and the initialization of the model."""

        submodule: str = REQUIRED
        """Its path, such as loss/teacher."""
        rest: ConfigOf[Initialization] = wraps(RandomInit.Config())

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self.name, self.prefix = config.locate("submodule"), f"{config.submodule}/"
        self.rest = config.rest.build()

    def check(self) -> None:
        """Checks the initialization of the model."""
        self.rest.check()

    def arrays(self, like: Requested, log: Callable[[str], None]) -> Arrays:
        """Loads the parameters of the model itself."""
        others = {path: like[path] for path in like if not path.startswith(self.prefix)}
        return self.rest.arrays(others, log)

    def copies(self, like: Requested) -> Paths:
        """Copies the submodule. The model must have all of it: other parameters would be random."""
        own = {path: path.removeprefix(self.prefix) for path in like}
        own = {path: model for path, model in own.items() if path != model}
        if not own:
            raise ConfigError(f"{self.name}: the model has no parameters below {self.prefix!r}.")
        for path, model in own.items():
            if model not in like or like[model].shape != like[path].shape:
                got = f"of shape {like[model].shape}" if model in like else "not there"
                raise ConfigError(
                    f"{self.name}: {path}, of shape {like[path].shape}, is a copy of the model's "
                    f"{model}, which is {got}: the model was changed after the submodule was "
                    "added. Change it before, or load the submodule from a run."
                )
        return {**self.rest.copies(like), **own}


def initial_state(
    program: Program, initialization: Initialization, log: Callable[[str], None]
) -> TrainState:
    """Returns the state before the first step; EMA and optimizer state follow loaded parameters."""
    like = abstract_state(program.state_shapes, program.state_shardings)
    wanted = {**like.params, **like.variables}
    loaded, copies = initialization.arrays(wanted, log), initialization.copies(wanted)
    random = program.initialize()
    if not loaded and not copies:
        return random
    params = {path: loaded.get(path, array) for path, array in random.params.items()}
    variables = {path: loaded.get(path, array) for path, array in random.variables.items()}
    del random  # frees its optimizer state

    def state(params: Arrays, variables: Arrays) -> TrainState:
        params, variables = (
            {path: arrays[copies.get(path, path)] for path in arrays}
            for arrays in (params, variables)
        )
        made: TrainState = program.learner.init(program.model, params, variables)
        return made

    with use_placement(program.placement):
        make = jax.jit(state, donate_argnums=(0, 1), out_shardings=program.state_shardings)
        return make(params, variables)
