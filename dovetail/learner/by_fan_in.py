"""Rates by fan-in: what a matrix sums over decides how far it moves."""

from __future__ import annotations

import math

import optax

from dovetail.config import REQUIRED, ConfigError, ConfigOf, wraps
from dovetail.learner.muon import Muon
from dovetail.learner.optimizer import ChangedOptimizer, Optimizer, PerTensor, Specs
from dovetail.learner.optimizers import Adafactor, AdamW, Sgd
from dovetail.learner.state import Arrays
from dovetail.module import ParameterSpec

# Their directions are as large as the gradient, the parameter, or the norm of a whole tensor.
OF_OTHER_SIZES = (Adafactor, Muon, PerTensor, Sgd)


class ByFanIn(ChangedOptimizer):
    """Multiplies the direction of every matrix by base width / fan-in (arXiv 2203.03466).

    That is muP's rule for optimizers whose directions have numbers of one size, whatever the
    gradient's, such as Adam. A product then moves by as much in a wide model as in a narrow one.
    Embeddings, norms and biases are no matrices (they have no fans), and move as before; so does a
    matrix whose fan-in is no width, such as the second of an adapter. Decay is the learner's, and
    is not scaled.
    """

    class Config(ChangedOptimizer.Config):
        """The fan-in whose rate stays, and what gives the directions."""

        base_width: int = REQUIRED
        optimizer: ConfigOf[Optimizer] = wraps(AdamW.Config())

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        if config.base_width < 1:
            where = config.locate("base_width")
            raise ConfigError(f"{where}: expected 1 or more, got {config.base_width}.")
        self.base_width = config.base_width
        self.optimizer = config.optimizer.build()
        if isinstance(self.optimizer, OF_OTHER_SIZES):
            raise ConfigError(
                f"{config.locate('optimizer')}: rates by fan-in are right for directions whose "
                f"numbers have one size, such as AdamW's or Lion's, got "
                f"{type(self.optimizer).__name__}. Choose one of those, or go without muP."
            )

    def transformation(self, specs: Specs) -> optax.GradientTransformation:
        """Returns the directions of the other optimizer, scaled; its state stays as it is."""
        inner = self.optimizer.transformation(specs)
        factors = {path: self._factor(spec) for path, spec in specs.items()}

        def update(
            updates: Arrays, state: optax.OptState, params: Arrays | None = None
        ) -> tuple[Arrays, optax.OptState]:
            directions, state = inner.update(updates, state, params)
            return {path: factors[path] * each for path, each in directions.items()}, state

        return optax.GradientTransformation(inner.init, update)

    def _factor(self, spec: ParameterSpec) -> float:
        if not (spec.is_matrix and spec.fan_in_grows):
            return 1.0
        return self.base_width / math.prod(spec.layer_shape[axis] for axis in spec.fan_in)
