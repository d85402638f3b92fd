"""Continuing prompts inside an evaluator, with the model that is being evaluated."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dovetail.config import ConfigOf
from dovetail.generate import Generator, Sampler
from dovetail.kernels import default_choices
from dovetail.trainer.interfaces import Evaluation


class PromptContinuer:
    """Continues the same prompts whenever it is called; it compiles only once."""

    def __init__(
        self,
        prompts: Sequence[str],
        *,
        max_new_tokens: int,
        sampler: ConfigOf[Sampler],
        stop_strings: Sequence[str] = (),
    ) -> None:
        """Compiles nothing yet; the arguments are those of `Generator.generate`."""
        self._prompts, self._max_new_tokens = list(prompts), max_new_tokens
        self._sampler, self._stop_strings = sampler, stop_strings
        self._generator: Generator | None = None

    def continuations(self, evaluation: Evaluation) -> list[str]:
        """Returns the new text after each prompt; the step is the random seed."""
        with default_choices():  # a run's kernel settings are for its train step
            results = self._generator_for(evaluation).generate(
                self._prompts,
                max_new_tokens=self._max_new_tokens,
                sampler=self._sampler,
                stop_tokens=[evaluation.tokenizer.end_of_text],
                stop_strings=self._stop_strings,
                seed=evaluation.step,
            )
        return [result.text or "" for result in results]

    def _generator_for(self, evaluation: Evaluation) -> Generator:
        """Returns a generator with the current parameters."""
        if self._generator is None:
            tokenizer = evaluation.tokenizer
            longest = max(len(tokenizer.encode(text)) for text in self._prompts)
            model: Any = evaluation.model.config
            self._generator = Generator(
                model,
                evaluation.params,
                length=longest + self._max_new_tokens,
                tokenizer=tokenizer,
                placement=evaluation.placement,
            )
        return self._generator.with_params(evaluation.params, evaluation.variables)
