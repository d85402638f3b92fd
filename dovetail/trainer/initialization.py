"""Parameter initialization of a run: random, or loaded, such as from another run (`run/`).

It is used once, while the run has no checkpoint of its own. Loaded parameters replace the random
ones of the same path; others, such as an adapter's, stay as initialized.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol

import jax

from dovetail.config import REQUIRED, Component, ConfigError, ConfigOf, wraps
from dovetail.learner import TrainState
from dovetail.parallel import use_placement
from dovetail.runtime import abstract_state
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
