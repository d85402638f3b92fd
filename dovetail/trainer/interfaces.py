"""The interfaces of the trainer's children. The trainer knows no implementation."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, cast, runtime_checkable

import jax

from dovetail.data import HasTokenizer, Input, Tokenizer
from dovetail.learner import StepReport, TrainState
from dovetail.module import Module
from dovetail.parallel import Placement
from dovetail.runtime import Agreement, CorruptResult, FaultEvent, Life, Metrics


class StateLearner(Protocol):
    """Computes updates from losses. Its config has `total_steps`, which the trainer sets."""

    def init(self, model: Module, params: Any, variables: Any) -> TrainState:
        """Returns the initial state."""
        ...

    def hyperparameters(self) -> Any:
        """Returns the numbers that the compiled step takes as an argument, a tree of scalars."""
        ...

    def step(
        self, model: Module, state: TrainState, batch: Any, key: Any, hyperparameters: Any
    ) -> tuple[TrainState, StepReport]:
        """Returns the next state and a report; pure."""
        ...

    def state_axes(self, model: Module) -> TrainState:
        """Returns the logical axes of every array of the state."""
        ...

    def check(self, placement: Placement) -> None:
        """Raises a ConfigError for a mesh whose devices its steps would not use."""
        ...


@runtime_checkable
class KnowsTrainedParameters(Protocol):
    """A learner that does not train all parameters. Of any other one, all count as trained."""

    def trained_paths(self, model: Module) -> frozenset[str]:
        """Returns the paths of the parameters that are trained."""
        ...


class StateSaver(Protocol):
    """Saves and restores the training state; what reads a run later uses it, too."""

    def open(self, folder: Path) -> None:
        """Sets the folder."""
        ...

    def steps(self) -> list[int]:
        """Returns the saved steps, oldest first."""
        ...

    def due(self, step: int) -> bool:
        """Returns whether to save after this step."""
        ...

    def save(self, step: int, state: Any) -> None:
        """Starts a save; never raises."""
        ...

    def restore(self, like: Any) -> tuple[int, Any] | None:
        """Returns the newest good state, or None."""
        ...

    def restore_parameters(self, like: Mapping[str, Any]) -> tuple[int, dict[str, Any]] | None:
        """Returns the step and the arrays of `like` that it has, by path, or None."""
        ...

    def finish(self) -> bool:
        """Waits for the last save, and returns whether it succeeded."""
        ...


@runtime_checkable
class RunsWithPeers(Protocol):
    """A saver that agrees with the other processes of a run, and reports faults."""

    def start(self, agreement: Agreement, life: Life | None, suspects: frozenset[int]) -> None:
        """Begins to train.

        Args:
            agreement: the processes of the run.
            life: the record of this start, on process 0; None on the others.
            suspects: steps whose checkpoints come last, because earlier lives died after them.
        """
        ...

    def evaluated(self, step: int, metrics: Metrics) -> None:
        """Learns what an evaluator found after a step, before that is saved."""
        ...

    def save_last(self, step: int, state: Any) -> None:
        """Starts the save that a run ends with, which must outlive the machine; never raises."""
        ...

    def take_faults(self) -> list[FaultEvent]:
        """Returns what went wrong since the last call: the same on all processes."""
        ...

    def close(self) -> None:
        """Ends what the other processes use of this one."""
        ...


@runtime_checkable
class CanDistrust(Protocol):
    """A saver that can set checkpoints aside which may hold a corrupt state."""

    def distrust(self, after: int) -> None:
        """Sets the checkpoints of later steps aside, as long as one is left."""
        ...


class DeviceCheck(Protocol):
    """Checks the devices before the first step."""

    def check(self, mesh: jax.sharding.Mesh, agreement: Agreement, /) -> CorruptResult | None:
        """Returns what is wrong with a device or a link, if anything."""
        ...


class StepCheck(Protocol):
    """Checks the results of some steps."""

    def start(
        self, step: int, agreement: Agreement, compile_on: Callable[[jax.sharding.Mesh], Any], /
    ) -> None:
        """Begins to train after a step; `compile_on` compiles the train step for another mesh."""
        ...

    def due(self, step: int) -> bool:
        """Returns whether to check this step."""
        ...

    def run(
        self, step: int, train_step: Any, arguments: Any, /
    ) -> tuple[tuple[TrainState, StepReport], CorruptResult | None]:
        """Runs a step on its arguments; returns its result, and what is wrong with it."""
        ...


@dataclass(frozen=True)
class Evaluation:
    """The input of an evaluator.

    `load_tokenizer` gives the tokenizer without any data, where that is possible.
    """

    step: int
    model: Module
    params: dict[str, Any]
    variables: dict[str, Any]
    input: Input
    placement: Placement
    folder: Path
    load_tokenizer: Callable[[], Tokenizer] | None = None

    @property
    def tokenizer(self) -> Tokenizer:
        """The tokenizer of the run."""
        if self.load_tokenizer is not None:
            return self.load_tokenizer()
        return cast("HasTokenizer", self.input).tokenizer


class Evaluator(Protocol):
    """Evaluates the model periodically, and at the end."""

    def due(self, step: int) -> bool:
        """Returns whether to run after this step; at the end it always runs."""
        ...

    def evaluate(self, evaluation: Evaluation) -> Metrics:
        """Returns metrics and texts by name."""
        ...


@runtime_checkable
class ChecksInput(Protocol):
    """An evaluator that needs more of the input than batches; asked before training."""

    def check_input(self, source: object) -> None:
        """Raises a ConfigError if the input does not have it."""
        ...


@runtime_checkable
class ChecksModel(Protocol):
    """An evaluator that needs more of the model than its loss; asked before training."""

    def check_model(self, model: Module) -> None:
        """Raises a ConfigError if the model cannot do it."""
        ...
