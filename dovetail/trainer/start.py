"""Where a run's first parameters come from: from nothing, from another run, a part from a third.

It is asked once, when the run has no checkpoint of its own yet. What it finds takes the place of
the initial parameters of the same path; the others, such as an adapter's, stay as initialised.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Protocol

import jax

from dovetail.config import REQUIRED, ConfigError, ConfigOf, Part, wraps
from dovetail.learner import TrainState
from dovetail.parallel import placed
from dovetail.runtime import RunFolder, abstract_state, has_parameters, read_parameters
from dovetail.trainer.program import Program

Arrays = dict[str, jax.Array]
Wanted = Mapping[str, jax.ShapeDtypeStruct]
Paths = dict[str, str]


class Start(Protocol):
    """Knows parameters to begin with."""

    def check(self) -> None:
        """Raises a ConfigError if it cannot be started from here; reads no array."""
        ...

    def arrays(self, like: Wanted, say: Callable[[str], None]) -> Arrays:
        """Returns those of the wanted parameters and variables that it knows, by path."""
        ...

    def copies(self, like: Wanted) -> Paths:
        """Returns which of the wanted ones begin as another one does, and as which."""
        ...


class FromScratch(Part):
    """Every parameter begins as its initializer makes it."""

    class Config(Part.Config["FromScratch"]):
        """Nothing to choose."""

    def check(self) -> None:
        """Always possible."""

    def arrays(self, like: Wanted, say: Callable[[str], None]) -> Arrays:
        """Knows none."""
        return {}

    def copies(self, like: Wanted) -> Paths:
        """Copies none."""
        return {}


class FromRun(Part):
    """Parameters begin as another run left them, found by path; averaged where it kept averages."""

    class Config(Part.Config["FromRun"]):
        """Which run."""

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
                "one that is trained; a relative path counts from the working folder."
            )

    def arrays(self, like: Wanted, say: Callable[[str], None]) -> Arrays:
        """Reads the run's newest good parameters, each array straight to its shards."""
        self.check()
        found = read_parameters(self.folder, like)
        step, arrays = found if found is not None else (0, {})
        say(
            f"started from step {step} of {self.folder.path}: took {len(arrays)} parameters; "
            f"{len(like) - len(arrays)} stay as initialised"
        )
        return arrays

    def copies(self, like: Wanted) -> Paths:
        """Copies none."""
        return {}


class PartFromRun(Part):
    """One part of the model begins as a whole model of another run, the rest as it would."""

    class Config(Part.Config["PartFromRun"]):
        """Which part, from which run."""

        part: str = REQUIRED
        """The path of the part, such as loss/teacher."""
        source: str = REQUIRED
        """The folder of the run; what its model calls x is the part's own x."""
        rest: ConfigOf[Start] = wraps(FromScratch.Config())

        @property
        def run(self) -> str | None:
            """The run that the rest begins from, if there is one."""
            return getattr(self.rest, "run", None)

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self.name, self.part = config.locate("source"), config.part
        self.source, self.rest = FromRun.Config(run=config.source).build(), config.rest.build()

    def check(self) -> None:
        """Raises a ConfigError if a run or its checkpoint is missing."""
        self.source.check()
        self.rest.check()

    def arrays(self, like: Wanted, say: Callable[[str], None]) -> Arrays:
        """Reads both. The part must be found whole: what it lacked would be random."""
        prefix = f"{self.part}/"
        wanted = {path.removeprefix(prefix): like[path] for path in like if path.startswith(prefix)}
        if not wanted:
            raise ConfigError(f"{self.name}: the model has no parameters below {self.part!r}.")
        found = self.source.arrays(wanted, lambda text: say(f"{self.part} {text}"))
        if missing := sorted(wanted.keys() - found.keys()):
            raise ConfigError(
                f"{self.name}: {self.part} should begin from {self.source.folder.path}, which has "
                f"no {missing[0]!r}. It must be a run of the same model as that part."
            )
        others = {path: like[path] for path in like if not path.startswith(prefix)}
        own = {f"{prefix}{path}": array for path, array in found.items()}
        return {**self.rest.arrays(others, say), **own}

    def copies(self, like: Wanted) -> Paths:
        """Copies what the rest does."""
        return self.rest.copies(like)


class PartAsModel(Part):
    """One part of the model begins as the model itself does: what it calls x is the model's x."""

    class Config(Part.Config["PartAsModel"]):
        """Which part, and how the model begins."""

        part: str = REQUIRED
        """The path of the part, such as loss/teacher."""
        rest: ConfigOf[Start] = wraps(FromScratch.Config())

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self.name, self.prefix = config.locate("part"), f"{config.part}/"
        self.rest = config.rest.build()

    def check(self) -> None:
        """Raises a ConfigError if the model cannot be started."""
        self.rest.check()

    def arrays(self, like: Wanted, say: Callable[[str], None]) -> Arrays:
        """Reads what the model itself begins with."""
        others = {path: like[path] for path in like if not path.startswith(self.prefix)}
        return self.rest.arrays(others, say)

    def copies(self, like: Wanted) -> Paths:
        """Copies the whole part. The model must have all of it: what it lacked would be random."""
        own = {path: path.removeprefix(self.prefix) for path in like}
        own = {path: model for path, model in own.items() if path != model}
        if not own:
            raise ConfigError(f"{self.name}: the model has no parameters below {self.prefix!r}.")
        for path, model in own.items():
            if model not in like or like[model].shape != like[path].shape:
                got = f"of shape {like[model].shape}" if model in like else "not there"
                raise ConfigError(
                    f"{self.name}: {path} should begin as the model's {model}, of shape "
                    f"{like[path].shape}, which is {got}: the model was changed after this part "
                    "was added. Change it before, or let the part begin from a run of its own."
                )
        return {**self.rest.copies(like), **own}


def first_state(program: Program, start: Start, say: Callable[[str], None]) -> TrainState:
    """Makes the state before the first step; averages and optimizer follow what was taken over."""
    like = abstract_state(program.state_shapes, program.state_shardings)
    wanted = {**like.params, **like.variables}
    taken, copies = start.arrays(wanted, say), start.copies(wanted)
    fresh = program.initialize()
    if not taken and not copies:
        return fresh
    params = {path: taken.get(path, array) for path, array in fresh.params.items()}
    variables = {path: taken.get(path, array) for path, array in fresh.variables.items()}
    del fresh  # its optimizer state makes room for the new one

    def state(params: Arrays, variables: Arrays) -> TrainState:
        params, variables = (
            {path: arrays[copies.get(path, path)] for path in arrays}
            for arrays in (params, variables)
        )
        made: TrainState = program.learner.init(program.model, params, variables)
        return made

    with placed(program.placement):
        make = jax.jit(state, donate_argnums=(0, 1), out_shardings=program.state_shardings)
        return make(params, variables)
