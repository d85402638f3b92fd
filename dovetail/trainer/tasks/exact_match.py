"""Exact match: the fraction of questions that the model answers, by greedy decoding, as expected.

Before each question come a few others with their answers (few-shot prompting), one a line. The
model's answer is the rest of the line. A small model may answer none of them, and still learn: the
loss of the expected answers, in nats per token, shows that earlier.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from dovetail.config import REQUIRED, ConfigError, ConfigOf
from dovetail.data import Answers
from dovetail.generate import Greedy
from dovetail.module import Module
from dovetail.runtime import Metrics
from dovetail.trainer.evaluators import (
    PeriodicEvaluator,
    check_continues_text,
    check_has_tokenizer,
    mean_over_batches,
)
from dovetail.trainer.interfaces import Evaluation
from dovetail.trainer.prompts import PromptContinuer


@dataclass(frozen=True)
class Question:
    """A question and its answer, without a line end: "What is 2 + 3?" and "5"."""

    text: str
    answer: str

    def solved(self) -> str:
        """Returns the line that shows how to answer."""
        return f"{self.text} {self.answer}\n"


class QuestionSource(Protocol):
    """Questions with answers."""

    def questions(self) -> Sequence[Question]:
        """Returns the questions, always the same ones in the same order."""
        ...


class ExactMatch(PeriodicEvaluator):
    """The fraction of exact answers, and the loss of the expected ones."""

    class Config(PeriodicEvaluator.Config["ExactMatch"]):
        """The questions; the first `shots` are shown, solved, before each of the others."""

        questions: ConfigOf[QuestionSource] = REQUIRED
        shots: int = 4
        max_new_tokens: int = 16

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        found = config.questions.build().questions()
        if not 0 <= config.shots < len(found):
            raise ConfigError(
                f"shots: expected 0 to {len(found) - 1}, as there are {len(found)} questions and "
                f"at least one is asked, got {config.shots}."
            )
        self.asked = found[config.shots :]
        shown = "".join(question.solved() for question in found[: config.shots])
        # The space belongs to the answer: tokenizers merge it with the next word.
        self.prompts = [shown + question.text for question in self.asked]
        self._continuer = PromptContinuer(
            self.prompts,
            max_new_tokens=config.max_new_tokens,
            sampler=Greedy.Config(),
            stop_strings=["\n"],
        )

    def check_input(self, source: object) -> None:
        """Raises a ConfigError for an input without a tokenizer."""
        check_has_tokenizer(self, source)

    def check_model(self, model: Module) -> None:
        """Raises a ConfigError for a model that needs more than text."""
        check_continues_text(self, model)

    def evaluate(self, evaluation: Evaluation) -> Metrics:
        """Returns `exact_match`, `answer_loss` and the number of questions."""
        self.check_input(evaluation.input)
        self.check_model(evaluation.model)
        answers = [question.answer for question in self.asked]
        given = [text.strip() for text in self._continuer.continuations(evaluation)]
        right = sum(text == answer for text, answer in zip(given, answers, strict=True))
        lines = [f" {answer}\n" for answer in answers]
        devices = evaluation.placement.mesh.size  # any mesh can shard a multiple of them
        expected = Answers(evaluation.tokenizer, self.prompts, lines, rows_multiple=devices)
        return {
            "exact_match": right / len(answers),
            "answer_loss": mean_over_batches(evaluation, expected)["loss"],
            "questions": len(answers),
        }
