"""muP learning rates: the update of a matrix is scaled by its fan-in."""

from __future__ import annotations

import math
from typing import Any

import optax

from dovetail.config import REQUIRED, ConfigError, wraps
from dovetail.learner.optimizers.base import (
    OptimizerConfig,
    OptimizerWrapper,
    PerTensor,
    Specs,
    build_optimizer,
)
from dovetail.learner.optimizers.library import Adafactor, AdamW, Muon, Sgd
from dovetail.learner.state import Arrays
from dovetail.module import ParameterSpec

# Their updates scale with the gradient, the parameter or a tensor norm, so muP's rule is wrong.
_NOT_ADAM_LIKE = (Adafactor, Muon, PerTensor, Sgd)


class MupOptimizer(OptimizerWrapper):
    """Scales the update of every matrix by base width / fan-in (muP, arXiv 2203.03466).

    That is muP's rule for optimizers whose updates have a fixed size, such as Adam: outputs then
    change by as much in a wide model as in a narrow one. Embeddings, norms and biases have no
    fan-in and are unchanged; so is a matrix whose fan-in is no width, such as LoRA's second. The
    learner's weight decay is not scaled.
    """

    class Config(OptimizerWrapper.Config):
        """The fan-in at which the learning rate is unchanged, and the inner optimizer."""

        base_width: int = REQUIRED
        optimizer: OptimizerConfig = wraps(AdamW.Config())

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        if config.base_width < 1:
            where = config.locate("base_width")
            raise ConfigError(f"{where}: expected 1 or more, got {config.base_width}.")
        self.base_width = config.base_width
        self.optimizer = build_optimizer(config.optimizer)
        if isinstance(self.optimizer, _NOT_ADAM_LIKE):
            raise ConfigError(
                f"{config.locate('optimizer')}: muP learning rates need updates of a fixed size, "
                f"such as AdamW's or Lion's, got {type(self.optimizer).__name__}. Choose one of "
                "those, or leave out muP."
            )

    def transformation(self, specs: Specs) -> optax.GradientTransformation:
        """Returns the scaled directions of the inner optimizer; its state is unchanged."""
        inner = optax.with_extra_args_support(self.optimizer.transformation(specs))
        factors = {path: self._factor(spec) for path, spec in specs.items()}

        def update(
            updates: Arrays, state: Any, params: Arrays | None = None, **extras: Any
        ) -> tuple[Arrays, Any]:
            directions, state = inner.update(updates, state, params, **extras)
            return {path: factors[path] * each for path, each in directions.items()}, state

        return optax.GradientTransformationExtraArgs(inner.init, update)

    def _factor(self, spec: ParameterSpec) -> float:
        if not (spec.is_matrix and spec.fan_in_grows):
            return 1.0
        return self.base_width / math.prod(spec.layer_shape[axis] for axis in spec.fan_in)
