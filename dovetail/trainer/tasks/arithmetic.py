"""Arithmetic: sums and differences of small whole numbers, such as `12 + 7 =`."""

from __future__ import annotations

import random

from dovetail.config import Component, ConfigError
from dovetail.trainer.tasks.exact_match import ExactMatch, Question
from dovetail.trainer.tasks.registry import task


class Arithmetic(Component):
    """Different questions, drawn at random; no result is negative."""

    class Config(Component.Config["Arithmetic"]):
        """Their number, the largest operand and the random seed."""

        num_questions: int = 68
        largest: int = 99
        seed: int = 0

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self.num_questions, self.largest = config.num_questions, config.largest
        self.seed = config.seed
        kinds = (config.largest + 1) ** 2  # of sums alone
        if not 1 <= config.num_questions <= kinds:
            raise ConfigError(
                f"num_questions: expected 1 to {kinds}, as operands are 0 to {config.largest}, "
                f"got {config.num_questions}."
            )

    def questions(self) -> list[Question]:
        """Returns the questions."""
        draw = random.Random(self.seed)  # nothing secret
        found: dict[str, Question] = {}
        while len(found) < self.num_questions:
            a, b = draw.randint(0, self.largest), draw.randint(0, self.largest)
            if draw.random() < 0.5:
                question = Question(f"{a} + {b} =", str(a + b))
            else:
                question = Question(f"{max(a, b)} - {min(a, b)} =", str(abs(a - b)))
            found[question.text] = question
        return list(found.values())


@task("arithmetic")
def arithmetic() -> ExactMatch.Config:
    """64 questions, each after the same four solved ones."""
    return ExactMatch.Config(questions=Arithmetic.Config())
