"""SAM, sharpness-aware minimization (arXiv 2010.01412), as a package of its own.

The gradient computation runs a second time at perturbed parameters, where the loss is higher. The
optimizer descends along that gradient, an extra, instead of the first.
"""

from dataclasses import replace
from typing import Any

import jax
import optax

from dovetail.config import Component, ConfigOf
from dovetail.features import feature
from dovetail.learner import AdamW, Autodiff, Optimizer, OptimizerWrapper
from dovetail.learner.gradients import GradientComputation, GradientResult


class PerturbedGradients(Component):
    """Gradients, and those at parameters that are moved uphill by `radius`."""

    class Config(Component.Config["PerturbedGradients"]):
        radius: float = 0.05
        inner: ConfigOf[GradientComputation] = Autodiff.Config()

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self.radius, self.inner = config.radius, config.inner.build()

    def __call__(
        self,
        model: Any,
        trainable: Any,
        frozen: Any,
        variables: Any,
        batch: Any,
        key: jax.Array,
        step: jax.Array,
    ) -> GradientResult:
        first = self.inner(model, trainable, frozen, variables, batch, key, step)
        scale = self.radius_at(step) / (optax.tree.norm(first.gradients) + 1e-12)
        moved = {p: value + scale * first.gradients[p] for p, value in trainable.items()}
        second = self.inner(model, moved, frozen, variables, batch, key, step)
        return replace(first, extras={"perturbed": second.gradients})

    def radius_at(self, step: jax.Array) -> Any:
        """Returns the radius; a test overrides it."""
        return self.radius

    def stage_axes(self) -> tuple[str, ...]:
        return self.inner.stage_axes()


class Sam(OptimizerWrapper):
    """Gives the gradients at the perturbed parameters to any optimizer."""

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        self.optimizer: Optimizer = config.optimizer.build()

    def required_extras(self) -> tuple[str, ...]:
        return ("perturbed", *super().required_extras())

    def transformation(self, specs: Any) -> optax.GradientTransformation:
        inner = optax.with_extra_args_support(self.optimizer.transformation(specs))

        def update(updates: Any, state: Any, params: Any = None, *, perturbed: Any, **rest: Any):
            return inner.update(perturbed, state, params, **rest)

        return optax.GradientTransformationExtraArgs(inner.init, update)


SAM = {
    "optimizer": Sam.Config(optimizer=AdamW.Config()),
    "gradients": PerturbedGradients.Config(radius=0.02),
}


@feature(
    "sam",
    kind="optimizer",
    needs={"dovetail.learner:Learner": "there is no gradient to compute twice"},
)
def sam(config: Any, radius: float = 0.02) -> Any:
    """The gradient at perturbed parameters, for the optimizer that is there."""
    optimizer = Sam.Config(optimizer=config.learner.optimizer)
    gradients = PerturbedGradients.Config(radius=radius, inner=config.learner.gradients)
    config.learner.set(optimizer=optimizer, gradients=gradients)
    return config
