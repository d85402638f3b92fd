"""The interfaces of the trainer's children. The trainer knows no implementation."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from dovetail.data import Input
from dovetail.learner import StepReport, TrainState
from dovetail.module import Module
from dovetail.parallel import Placement
from dovetail.runtime import Metrics


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


@dataclass(frozen=True)
class Evaluation:
    """The input of an evaluator."""

    step: int
    model: Module
    params: dict[str, Any]
    variables: dict[str, Any]
    input: Input
    placement: Placement
    folder: Path


class Evaluator(Protocol):
    """Evaluates the model periodically, and at the end."""

    def due(self, step: int) -> bool:
        """Returns whether to run after this step; at the end it always runs."""
        ...

    def evaluate(self, evaluation: Evaluation) -> Metrics:
        """Returns metrics and texts by name."""
        ...
