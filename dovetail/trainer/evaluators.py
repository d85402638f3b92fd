"""Evaluators: the held-out loss, and a trigram baseline."""

from __future__ import annotations

import contextvars
import functools
from collections.abc import Mapping
from typing import Any, Generic, cast

import jax

from dovetail.config import Component, ConfigError, T_co
from dovetail.data import (
    EvaluationInput,
    HasHeldOut,
    HasHeldOutSources,
    HasPreparedData,
    has_tokenizer,
    trigram_bits_per_byte,
)
from dovetail.kernels import reference_only
from dovetail.module import Module, functional, merge_into, parameter_specs, variable_specs
from dovetail.runtime import Metrics
from dovetail.trainer.feed import device_batch
from dovetail.trainer.interfaces import Evaluation
from dovetail.trainer.step_metrics import short_names


class PeriodicEvaluator(Component):
    """Runs every `every` steps; 0 means at the end only."""

    class Config(Component.Config[T_co], Generic[T_co]):
        """How often it runs."""

        every: int = 0

    def __init__(self, config: Config[Any]) -> None:
        super().__init__(config)
        if config.every < 0:
            raise ConfigError(f"every: expected 0 (at the end only) or more, got {config.every}.")
        self.every = config.every

    def due(self, step: int) -> bool:
        """Returns whether to run after this step."""
        return self.every > 0 and step % self.every == 0


class HeldOutLoss(PeriodicEvaluator):
    """The loss on held-out data, with every summary that the model adds.

    An input of several sources has a loss for each, `SOURCE/loss`, beside that of all.
    """

    class Config(PeriodicEvaluator.Config["HeldOutLoss"]):
        """The number of held-out batches; None means all."""

        num_batches: int | None = None

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self.num_batches = config.num_batches

    def check_input(self, source: object) -> None:
        """Raises a ConfigError for an input without held-out data."""
        if not isinstance(source, HasHeldOut):
            raise missing_from_input(self, source, "held-out data (`held_out`)")

    def evaluate(self, evaluation: Evaluation) -> Metrics:
        """Returns the means over the held-out batches."""
        self.check_input(evaluation.input)
        if isinstance(evaluation.input, HasHeldOutSources):
            return mean_by_source(evaluation, evaluation.input.held_out_by_source(self.num_batches))
        source = cast("HasHeldOut", evaluation.input).held_out(self.num_batches)
        return mean_over_batches(evaluation, source)


class ByteTrigram(PeriodicEvaluator):
    """The bits per byte of a byte trigram on the same held-out data, as a baseline."""

    class Config(PeriodicEvaluator.Config["ByteTrigram"]):
        """Only how often it runs."""

    def check_input(self, source: object) -> None:
        """Raises a ConfigError for an input without prepared text."""
        if not isinstance(source, HasPreparedData) or not has_tokenizer(source):
            raise missing_from_input(self, source, "prepared text (`prepare`, `tokenizer`)")
        if isinstance(source, HasHeldOutSources):
            raise missing_from_input(self, source, "a single corpus")

    def evaluate(self, evaluation: Evaluation) -> Metrics:
        """Returns the trigram's bits per byte."""
        self.check_input(evaluation.input)
        return {"bits_per_byte": trigram_bits_per_byte(cast("Any", evaluation.input))}


def missing_from_input(evaluator: object, source: object, what: str) -> ConfigError:
    """Returns the error for an input without the capability that an evaluator needs."""
    return ConfigError(
        f"evaluators: {type(evaluator).__name__} needs an input with {what}, and "
        f"{type(source).__name__} has none. Remove the evaluator, or extend the input."
    )


def check_has_tokenizer(evaluator: object, source: object) -> None:
    """Raises a ConfigError for an input without a tokenizer."""
    if not has_tokenizer(source):
        raise missing_from_input(evaluator, source, "a tokenizer (`tokenizer`)")


def check_continues_text(evaluator: object, model: Module) -> None:
    """Raises a ConfigError for a model that does not predict tokens from text alone."""
    name, cause = type(evaluator).__name__, f"{type(model).__name__} has no method `predict`"
    if hasattr(model, "predict"):
        try:
            contextvars.Context().run(_predict_shapes, model)  # without a mesh
        except ConfigError as error:
            cause = str(error).partition(". ")[0]
        else:
            return
    raise ConfigError(
        f"evaluators: {name} gives the model nothing but text, and this one needs more or other "
        f"inputs ({cause}). Remove the evaluator."
    )


def _predict_shapes(model: Module) -> None:
    """Traces the logits of a row of text; allocates nothing, and records no choice of a kernel."""
    specs = (parameter_specs(model), variable_specs(model))
    structs = [{path: spec.struct() for path, spec in found.items()} for found in specs]
    row = jax.ShapeDtypeStruct((1, 2), "int32")

    def predict(params: Any, variables: Any, row: jax.Array) -> Any:
        options = {"variables": variables, "method": "predict", "losses": "discard"}
        return functional(model, params, (row,), **options)[0]

    with reference_only():
        jax.eval_shape(predict, *structs, row)


def mean_over_batches(evaluation: Evaluation, source: EvaluationInput) -> dict[str, float]:
    """Returns the means of the loss and of every summary of the model over some batches."""
    return _values(_merged(evaluation, source))


def mean_by_source(
    evaluation: Evaluation, sources: Mapping[str, EvaluationInput]
) -> dict[str, float]:
    """Returns the means over the batches of all sources, and over those of each."""
    total: dict[str, Any] = {}
    found: dict[str, float] = {}
    for name, source in sources.items():
        merged = _merged(evaluation, source)
        found |= {f"{name}/{key}": value for key, value in _values(merged).items()}
        merge_into(total, merged)
    return _values(total) | found


def _merged(evaluation: Evaluation, source: EvaluationInput) -> dict[str, Any]:
    """Returns the sums and weights of the loss and of every summary over some batches."""
    spec = source.spec()
    shardings = jax.tree.map(lambda leaf: evaluation.placement.sharding(leaf.axes), spec)
    run = _evaluation_step(evaluation.model)
    merged: dict[str, Any] = {}
    for index in range(source.num_batches):
        batch = device_batch(source, index, shardings, spec)
        found = run(evaluation.params, evaluation.variables, batch)
        losses, summaries = jax.device_get(found)
        merge_into(merged, {"losses/loss": _main(losses), **summaries})
    return merged


def _values(merged: dict[str, Any]) -> dict[str, float]:
    return {name: float(value.value()) for name, value in short_names(merged).items()}


@functools.lru_cache(maxsize=4)
def _evaluation_step(model: Any) -> Any:
    """Returns the jitted evaluation of a model; cached, so that it compiles once."""

    @jax.jit
    def run(params: Any, variables: Any, batch: Any) -> Any:
        _, outputs = functional(model, params, batch, variables=variables, losses="return")
        return outputs.losses, outputs.summaries

    return run


def _main(losses: dict[str, Any]) -> Any:
    """Returns the main loss (see `main_loss`)."""
    from dovetail.learner import main_loss

    return losses[main_loss(list(losses))]
