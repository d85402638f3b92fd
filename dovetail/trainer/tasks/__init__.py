"""Tasks: evaluators that bring their own questions, by name: `dovetail evaluate RUN arithmetic`."""

from dovetail.trainer.tasks.exact_match import ExactMatch, Question, QuestionSource
from dovetail.trainer.tasks.registry import task, tasks

__all__ = ["ExactMatch", "Question", "QuestionSource", "task", "tasks"]
