"""Parameter initialization from the checkpoint of another run."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from dovetail.config import REQUIRED, Component, ConfigError, ConfigOf, wraps
from dovetail.data.tokenizer import MAIN_FILE
from dovetail.run.run import Run
from dovetail.trainer import Initialization, RandomInit
from dovetail.trainer.initialization import Arrays, Paths, Requested


@runtime_checkable
class ChecksTokenizer(Protocol):
    """An initialization with weights that belong to a tokenizer."""

    def check_tokenizer(self, digests: Mapping[str, str]) -> None:
        """Raises a ConfigError for another tokenizer; takes the digest of each of its files."""
        ...


class InitFromRun(Component):
    """Loads parameters by path from the checkpoint of another run; its EMA where it has one."""

    class Config(Component.Config["InitFromRun"]):
        """The run."""

        run: str = REQUIRED
        """Its folder, such as runs/tiny-lm."""

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self.name, self.path = config.locate("run"), Path(config.run)

    @functools.cached_property
    def run(self) -> Run:
        """The run; opened at first use."""
        return Run(self.path)

    def check(self) -> None:
        """Raises a ConfigError if the run or its checkpoint is missing."""
        if not self.path.is_dir():
            raise ConfigError(
                f"{self.name}: the run folder {self.path} does not exist. A relative path is "
                "relative to the working directory."
            )
        if not self.run.parameters.exist():
            raise ConfigError(f"{self.name}: {self.path} has no checkpoint. Train it first.")

    def check_tokenizer(self, digests: Mapping[str, str]) -> None:
        """Raises a ConfigError if the run has another tokenizer: its token ids differ."""
        expected = self.run.about.get("tokenizer") or {}
        names = {MAIN_FILE} if MAIN_FILE in expected else expected.keys()
        if different := sorted(name for name in names if digests.get(name) != expected[name]):
            raise ConfigError(
                f"{self.name}: {self.path} has another tokenizer than this run, whose token ids "
                f"mean something else to its weights ({different[0]} differs). Use the tokenizer "
                f"of that run, such as input.tokenizer.folder={self.run.folder.tokenizer}."
            )

    def arrays(self, like: Requested, log: Callable[[str], None]) -> Arrays:
        """Reads the newest good parameters, each array directly to its shards."""
        self.check()
        found = self.run.read_arrays(like)
        step, arrays = found if found is not None else (0, {})
        log(
            f"initialized from step {step} of {self.path}: loaded {len(arrays)} parameters; "
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

    def check_tokenizer(self, digests: Mapping[str, str]) -> None:
        """Raises a ConfigError if a run has another tokenizer."""
        self.source.check_tokenizer(digests)
        rest: Any = self.rest
        if isinstance(rest, ChecksTokenizer):
            rest.check_tokenizer(digests)

    def arrays(self, like: Requested, log: Callable[[str], None]) -> Arrays:
        """Loads both. The submodule must be complete: a missing parameter would stay random."""
        prefix = f"{self.submodule}/"
        wanted = {path.removeprefix(prefix): like[path] for path in like if path.startswith(prefix)}
        if not wanted:
            raise ConfigError(f"{self.name}: the model has no parameters below {self.submodule!r}.")
        found = self.source.arrays(wanted, lambda text: log(f"{self.submodule} {text}"))
        if missing := sorted(wanted.keys() - found.keys()):
            raise ConfigError(
                f"{self.name}: {self.submodule} is loaded from {self.source.path}, which "
                f"has no {missing[0]!r}. It must be a run of the same model as the submodule."
            )
        others = {path: like[path] for path in like if not path.startswith(prefix)}
        own = {f"{prefix}{path}": array for path, array in found.items()}
        return {**self.rest.arrays(others, log), **own}

    def copies(self, like: Requested) -> Paths:
        """Returns the copies of `rest`."""
        return self.rest.copies(like)
