"""What the trainer asks of its children. It knows each by these and none by class."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from dovetail.data import Input
from dovetail.learner import StepReport, TrainState
from dovetail.module import Module
from dovetail.parallel import Placement
from dovetail.runtime import Figures


class StateLearner(Protocol):
    """Turns losses into updates. Its config takes `total_steps`, which the trainer sets."""

    def init(self, model: Module, params: Any, variables: Any) -> TrainState:
        """Returns the first state."""
        ...

    def step(
        self, model: Module, state: TrainState, batch: Any, key: Any
    ) -> tuple[TrainState, StepReport]:
        """Returns the next state and a report; pure."""
        ...

    def state_axes(self, model: Module) -> TrainState:
        """Returns the logical axes of every array of the state."""
        ...

    def check(self, placement: Placement) -> None:
        """Raises a ConfigError for a mesh that its steps make no use of."""
        ...


class StateSaver(Protocol):
    """Keeps the training state on disk."""

    def open(self, folder: Path) -> None:
        """Says where."""
        ...

    def steps(self) -> list[int]:
        """Returns the steps that are saved, oldest first."""
        ...

    def due(self, step: int) -> bool:
        """Says whether to save after this step."""
        ...

    def save(self, step: int, state: Any) -> None:
        """Begins to save; never raises."""
        ...

    def restore(self, like: Any) -> tuple[int, Any] | None:
        """Returns the newest good state, or None."""
        ...

    def finish(self) -> bool:
        """Waits, and says whether the last save succeeded."""
        ...


@dataclass(frozen=True)
class Evaluation:
    """What an evaluator may look at."""

    step: int
    model: Module
    params: dict[str, Any]
    variables: dict[str, Any]
    input: Input
    placement: Placement
    folder: Path


class Evaluator(Protocol):
    """Looks at the model from time to time, and at the end."""

    def due(self, step: int) -> bool:
        """Says whether to run after this step; at the end it always runs."""
        ...

    def evaluate(self, evaluation: Evaluation) -> Figures:
        """Returns figures and texts by name."""
        ...
