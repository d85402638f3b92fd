"""The registry of tasks.

A task of your own is a function that returns the config of an evaluator. Put it into any module,
and pass that with `--import`:

    @task("capitals")
    def capitals() -> ConfigOf[Evaluator]:
        return ExactMatch.Config(questions=Capitals.Config())
"""

from __future__ import annotations

from collections.abc import Callable

from dovetail.config import ConfigOf, Registry
from dovetail.trainer.interfaces import Evaluator

MakeTask = Callable[[], ConfigOf[Evaluator]]

_tasks: Registry[MakeTask] = Registry("task", "dovetail.trainer.tasks")


def task(name: str) -> Callable[[MakeTask], MakeTask]:
    """Registers a function that returns the config of an evaluator, as a task."""

    def register(function: MakeTask) -> MakeTask:
        return _tasks.register(name, function, function.__module__)

    return register


def tasks() -> dict[str, MakeTask]:
    """Returns all tasks by name: this package's, and those of imported packages."""
    return _tasks.all()
