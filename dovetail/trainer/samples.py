"""Samples: text that the model generates, and the scores that judges give it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol, cast

from dovetail.config import ConfigOf
from dovetail.data import Tokenizer, has_tokenizer
from dovetail.generate import Generator, Sampler, Sampling
from dovetail.kernels import default_choices
from dovetail.runtime import Metrics
from dovetail.trainer.evaluators import PeriodicEvaluator, missing_from_input
from dovetail.trainer.interfaces import Evaluation


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
        self.max_new_tokens, self.shown = config.max_new_tokens, config.shown
        self.stride = max(1, config.samples_per_prompt)
        self.sampler = config.sampler
        self.judges = {name: child.build() for name, child in config.judges.items()}
        self._generator: Generator | None = None

    def check_input(self, source: object) -> None:
        """Raises a ConfigError for an input without a tokenizer."""
        if not has_tokenizer(source):
            raise missing_from_input(self, source, "a tokenizer (`tokenizer`)")

    def evaluate(self, evaluation: Evaluation) -> Metrics:
        """Returns each judge's score, and the first samples."""
        self.check_input(evaluation.input)
        tokenizer = cast("Any", evaluation.input).tokenizer
        with default_choices():  # a run's kernel settings are for its train step
            results = self._generator_for(evaluation, tokenizer).generate(
                self.prompts,
                max_new_tokens=self.max_new_tokens,
                sampler=self.sampler,
                stop_tokens=[tokenizer.end_of_text],
                seed=evaluation.step,
            )
        texts = [
            prompt + (result.text or "")
            for prompt, result in zip(self.prompts, results, strict=True)
        ]
        shown = {
            f"text_{i + 1}": text for i, text in enumerate(texts[:: self.stride][: self.shown])
        }
        return {name: child.judge(texts) for name, child in self.judges.items()} | shown

    def _generator_for(self, evaluation: Evaluation, tokenizer: Tokenizer) -> Generator:
        """Returns a generator with the current parameters; it compiles only once."""
        if self._generator is None:
            longest = max(len(tokenizer.encode(text)) for text in self.prompts)
            model: Any = evaluation.model.config
            self._generator = Generator(
                model,
                evaluation.params,
                length=longest + self.max_new_tokens,
                tokenizer=tokenizer,
                placement=evaluation.placement,
            )
        return self._generator.with_params(evaluation.params, evaluation.variables)
