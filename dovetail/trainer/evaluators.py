"""Evaluators: the held-out loss, and the yardstick beside it."""

from __future__ import annotations

import functools
from typing import Any, Generic

import jax

from dovetail.config import ConfigError, Part, T_co
from dovetail.data import trigram_bits_per_byte
from dovetail.module import functional, merge_into
from dovetail.runtime import Figures
from dovetail.trainer.feed import device_batch
from dovetail.trainer.figures import shortened
from dovetail.trainer.interfaces import Evaluation


class PeriodicEvaluator(Part):
    """Runs every so many steps; 0 means at the end only."""

    class Config(Part.Config[T_co], Generic[T_co]):
        """How often."""

        every: int = 0

    def __init__(self, config: Config[Any]) -> None:
        super().__init__(config)
        if config.every < 0:
            raise ConfigError(f"every: expected 0 (at the end only) or more, got {config.every}.")
        self.every = config.every

    def due(self, step: int) -> bool:
        """Says whether to run after this step."""
        return self.every > 0 and step % self.every == 0


class HeldOutLoss(PeriodicEvaluator):
    """The loss on data that training never sees, with every summary that the model adds."""

    class Config(PeriodicEvaluator.Config["HeldOutLoss"]):
        """How many batches of the held-out split; None means all."""

        num_batches: int | None = None

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self.num_batches = config.num_batches

    def evaluate(self, evaluation: Evaluation) -> Figures:
        """Returns the means over the held-out batches."""
        source = evaluation.input.held_out(self.num_batches)
        spec = source.spec()
        shardings = jax.tree.map(lambda leaf: evaluation.placement.sharding(leaf.axes), spec)
        run = _evaluation_step(evaluation.model)
        merged: dict[str, Any] = {}
        for index in range(source.num_batches):
            batch = device_batch(source, index, shardings, spec)
            found = run(evaluation.params, evaluation.variables, batch)
            losses, summaries = jax.device_get(found)
            merge_into(merged, {"losses/loss": _added(losses), **summaries})
        return {name: float(value.value()) for name, value in shortened(merged).items()}


class ByteTrigram(PeriodicEvaluator):
    """What a byte trigram reaches on the same held-out split, to measure the model against."""

    class Config(PeriodicEvaluator.Config["ByteTrigram"]):
        """Nothing beyond how often."""

    def evaluate(self, evaluation: Evaluation) -> Figures:
        """Returns the trigram's bits per byte."""
        return {"bits_per_byte": trigram_bits_per_byte(evaluation.input)}


@functools.lru_cache(maxsize=4)
def _evaluation_step(model: Any) -> Any:
    """Compiles the evaluation of a model once."""

    @jax.jit
    def run(params: Any, variables: Any, batch: Any) -> Any:
        _, outputs = functional(model, params, batch, variables=variables, losses="return")
        return outputs.losses, outputs.summaries

    return run


def _added(losses: dict[str, Any]) -> Any:
    """Returns the main loss: the one nearest to the root."""
    from dovetail.learner import main_loss

    return losses[main_loss(list(losses))]
