"""Sophia-G (arXiv 2305.14342), as a package of its own: no file of Dovetail knows of it.

Every k steps, a second backward pass with labels sampled from the model's own predictions estimates
the diagonal of the Gauss-Newton matrix. It reaches the optimizer as an extra.
"""

from dataclasses import replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from dovetail.config import Component, ConfigOf, config_for, register_function
from dovetail.features import feature
from dovetail.layers import TokenContext
from dovetail.learner import Autodiff, Elementwise, replace_inner_optimizer
from dovetail.learner.gradients import GradientComputation, GradientResult
from dovetail.module import functional


class GaussNewtonBartlett(Component):
    """Gradients, and every few steps an estimate of the Gauss-Newton diagonal."""

    class Config(Component.Config["GaussNewtonBartlett"]):
        every: int = 10
        inner: ConfigOf[GradientComputation] = Autodiff.Config()

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self.every, self.inner = config.every, config.inner.build()

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
        result = self.inner(model, trainable, frozen, variables, batch, key, step)

        def estimate() -> dict[str, jax.Array]:
            sample_key, gradient_key = jax.random.split(jax.random.fold_in(key, 1))
            inputs = (batch.tokens, TokenContext(batch.positions, batch.segment_ids))
            logits_BSV, _ = functional(
                model,
                {**frozen, **trainable},
                inputs,
                variables=variables,
                key=gradient_key,
                method="all_logits",
                losses="discard",
            )
            targets_BS = jax.random.categorical(sample_key, logits_BSV.astype(jnp.float32))
            sampled = replace(batch, targets=targets_BS.astype(batch.targets.dtype))
            second = self.inner(model, trainable, frozen, variables, sampled, gradient_key, step)
            # The gradient is of the mean over tokens; the estimate is tokens times its square.
            tokens = batch.loss_weights.sum()
            return {p: self.scaled(tokens * g * g, step) for p, g in second.gradients.items()}

        def nothing() -> dict[str, jax.Array]:
            return {path: jnp.zeros_like(value) for path, value in result.gradients.items()}

        is_new = step % self.every == 0
        diagonal = jax.lax.cond(is_new, estimate, nothing)
        return replace(result, extras={"diagonal": diagonal, "diagonal_is_new": is_new})

    def scaled(self, diagonal: jax.Array, step: jax.Array) -> jax.Array:
        """Returns the estimate; a test overrides it."""
        return diagonal

    def stage_axes(self) -> tuple[str, ...]:
        return self.inner.stage_axes()


class SophiaState(NamedTuple):
    """The moving averages of gradient and diagonal."""

    mu: Any
    diagonal: Any


def scale_by_sophia(
    b1: float = 0.965, b2: float = 0.99, rho: float = 0.05
) -> optax.GradientTransformationExtraArgs:
    """Momentum over curvature, clipped to 1 in each element."""

    def init(params: Any) -> SophiaState:
        zeros = jax.tree.map(jnp.zeros_like, params)
        return SophiaState(zeros, jax.tree.map(jnp.zeros_like, params))

    def update(
        updates: Any,
        state: SophiaState,
        params: Any = None,
        *,
        diagonal: Any,
        diagonal_is_new: jax.Array,
        **_: Any,
    ) -> tuple[Any, SophiaState]:
        mu = jax.tree.map(lambda m, g: b1 * m + (1 - b1) * g, state.mu, updates)
        kept = jax.tree.map(
            lambda h, new: jnp.where(diagonal_is_new, b2 * h + (1 - b2) * new, h),
            state.diagonal,
            diagonal,
        )
        directions = jax.tree.map(
            lambda m, h: jnp.clip(m / jnp.maximum(rho * h, 1e-15), -1.0, 1.0), mu, kept
        )
        return directions, SophiaState(mu, kept)

    return optax.GradientTransformationExtraArgs(init, update)


register_function(f"{__name__}:scale_by_sophia")
SOPHIA = {
    "optimizer": Elementwise.Config(
        transform=config_for(scale_by_sophia), extras=("diagonal", "diagonal_is_new")
    ),
    "gradients": GaussNewtonBartlett.Config(every=2),
}


@feature(
    "sophia",
    kind="optimizer",
    needs={"dovetail.models:CausalLM": "there are no logits to sample labels from"},
    trials=({"every": 2},),
)
def sophia(config: Any, every: int = 10) -> Any:
    """Sophia-G, with a new estimate of the curvature every so many steps."""
    optimizer = replace_inner_optimizer(config.learner.optimizer, SOPHIA["optimizer"])
    gradients = GaussNewtonBartlett.Config(every=every, inner=config.learner.gradients)
    config.learner.set(optimizer=optimizer, gradients=gradients)
    return config
