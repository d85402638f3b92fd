"""Samples: text that the model generates, and the scores that judges give it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from dovetail.config import ConfigOf
from dovetail.generate import Sampler, Sampling
from dovetail.runtime import Metrics
from dovetail.trainer.evaluators import PeriodicEvaluator, check_has_tokenizer
from dovetail.trainer.interfaces import Evaluation
from dovetail.trainer.prompts import PromptContinuer


class TextJudge(Protocol):
    """Scores generated texts."""

    def judge(self, texts: Sequence[str]) -> float:
        """Returns one score for all of them; each may end in the middle of a line."""
        ...


class Samples(PeriodicEvaluator):
    """Continues a few prompts with the current model, and scores the texts."""

    class Config(PeriodicEvaluator.Config["Samples"]):
        """Prompts, samples and their length; the first `shown` samples are printed."""

        prompts: tuple[str, ...] = ("import", "def", "class", "    if")
        samples_per_prompt: int = 4
        max_new_tokens: int = 96
        shown: int = 2
        sampler: ConfigOf[Sampler] = Sampling.Config(temperature=0.7, top_p=0.95)
        judges: dict[str, ConfigOf[TextJudge]] = {}

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self.prompts = [text for text in config.prompts for _ in range(config.samples_per_prompt)]
        self.shown, self.stride = config.shown, max(1, config.samples_per_prompt)
        self.judges = {name: child.build() for name, child in config.judges.items()}
        self._continuer = PromptContinuer(
            self.prompts, max_new_tokens=config.max_new_tokens, sampler=config.sampler
        )

    def check_input(self, source: object) -> None:
        """Raises a ConfigError for an input without a tokenizer."""
        check_has_tokenizer(self, source)

    def evaluate(self, evaluation: Evaluation) -> Metrics:
        """Returns each judge's score, and the first samples."""
        self.check_input(evaluation.input)
        continuations = self._continuer.continuations(evaluation)
        texts = [prompt + new for prompt, new in zip(self.prompts, continuations, strict=True)]
        shown = {
            f"text_{i + 1}": text for i, text in enumerate(texts[:: self.stride][: self.shown])
        }
        return {name: child.judge(texts) for name, child in self.judges.items()} | shown
