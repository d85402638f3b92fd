"""Samples: text that the model writes, and how many of its lines are Python."""

from __future__ import annotations

from typing import Any

from dovetail.config import ConfigOf
from dovetail.data import python_lines
from dovetail.generate import Generator, Sampler, Sampling
from dovetail.runtime import Figures
from dovetail.trainer.evaluators import PeriodicEvaluator
from dovetail.trainer.interfaces import Evaluation


class Samples(PeriodicEvaluator):
    """Continues a few prompts with the model as it is."""

    class Config(PeriodicEvaluator.Config["Samples"]):
        """What to continue, how often and how long; the first `shown` samples are printed."""

        prompts: tuple[str, ...] = ("import ", "def ", "class ", "    if ")
        samples_per_prompt: int = 4
        max_new_tokens: int = 96
        shown: int = 2
        sampler: ConfigOf[Sampler] = Sampling.Config(temperature=0.7, top_p=0.95)

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self.prompts = [text for text in config.prompts for _ in range(config.samples_per_prompt)]
        self.max_new_tokens, self.shown = config.max_new_tokens, config.shown
        self.stride = max(1, config.samples_per_prompt)
        self.sampler = config.sampler
        self._generator: Generator | None = None

    def evaluate(self, evaluation: Evaluation) -> Figures:
        """Returns the first samples, and the share of lines that pass Python's tokenizer."""
        results = self._generator_for(evaluation).generate(
            self.prompts,
            max_new_tokens=self.max_new_tokens,
            sampler=self.sampler,
            stop_tokens=[evaluation.input.tokenizer.end_of_text],
            seed=evaluation.step,
        )
        texts = [
            prompt + (result.text or "")
            for prompt, result in zip(self.prompts, results, strict=True)
        ]
        # A sample ends wherever its tokens end, so its last line is cut off and not judged.
        judged = python_lines("\n".join(text.rpartition("\n")[0] for text in texts))
        shown = {
            f"text_{i + 1}": text for i, text in enumerate(texts[:: self.stride][: self.shown])
        }
        return {"python_lines": judged.fraction, **shown}

    def _generator_for(self, evaluation: Evaluation) -> Generator:
        """Returns a generator with the parameters of now; what the first one compiled is kept."""
        if self._generator is None:
            tokenizer = evaluation.input.tokenizer
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
