"""The learner's step costs what the same step costs when it is written by hand."""

import re

import jax
import jax.numpy as jnp
import numpy as np

from dovetail.learner import ConstantSchedule
from dovetail.module import Module, parameter, repeated, scan
from tests.learner.tiny import KEY, make_learner, start

LAYERS, WIDTH = 4, 128


class Square(Module):
    """A matrix large enough that copies would show."""

    def __init__(self, config: Module.Config) -> None:
        super().__init__(config)
        self.weight = parameter((WIDTH, WIDTH), ("embed", "mlp"), fan_in=(0,), fan_out=(1,))

    def __call__(self, x: jax.Array) -> jax.Array:
        return jnp.tanh(x @ self.weight)


class Stack(Module):
    """A stack of them and a loss."""

    def __init__(self, config: Module.Config) -> None:
        super().__init__(config)
        self.layer = repeated(Square.Config().build(), LAYERS)

    def __call__(self, x: jax.Array) -> None:
        x, _ = scan(self.layer, lambda x, _: (self.layer(x), None), x)
        self.add_loss("loss", (x**2).sum(), x.shape[0])


def by_hand(state, x):
    """AdamW with clipping, decay and metrics, and with no guard at all."""

    def loss_of(weights):
        y, _ = jax.lax.scan(lambda y, w: (jnp.tanh(y @ w), None), x, weights)
        return (y**2).sum() / x.shape[0]

    weights, mu, nu, step = state
    loss, gradient = jax.value_and_grad(loss_of)(weights)
    norm = jnp.sqrt(jnp.sum(gradient**2))
    gradient = gradient * (1.0 / jnp.maximum(norm, 1.0))
    mu, nu = 0.9 * mu + 0.1 * gradient, 0.95 * nu + 0.05 * gradient**2
    mu_hat, nu_hat = mu / (1 - 0.9 ** (step + 1)), nu / (1 - 0.95 ** (step + 1))
    direction = mu_hat / (jnp.sqrt(nu_hat) + 1e-8) + 0.1 * weights
    return (weights - 0.01 * direction, mu, nu, step + 1), (loss, norm)


def test_bytes_and_products_are_those_of_a_step_by_hand() -> None:
    model, x = Stack.Config().build(), jnp.ones((4, WIDTH))
    schedule = ConstantSchedule.Config(peak=0.01)
    learner = make_learner(schedule=schedule, clip_norm=1.0, weight_decay=0.1)
    state = start(learner, model)
    weights = state.params["layer/weight"]
    hand_state = (weights, jnp.zeros_like(weights), jnp.zeros_like(weights), jnp.int32(0))

    def compile_step(step, state):
        compiled = jax.jit(step, donate_argnums=0).lower(state, x).compile()
        memory, text = compiled.memory_analysis(), compiled.as_text()
        assert memory.alias_size_in_bytes >= 3 * weights.nbytes  # donated, and used again
        counts = [len(re.findall(rf" {op}\(", text)) for op in ("dot", "while")]
        return compiled, memory.temp_size_in_bytes + memory.argument_size_in_bytes, counts

    ours, our_bytes, our_counts = compile_step(lambda s, b: learner.step(model, s, b, KEY), state)
    hand, hand_bytes, hand_counts = compile_step(by_hand, hand_state)
    assert our_bytes <= 1.02 * hand_bytes
    assert our_counts == hand_counts
    after, _ = ours(jax.tree.map(jnp.copy, state), x)
    hand_after, _ = hand(jax.tree.map(jnp.copy, hand_state), x)
    np.testing.assert_allclose(after.params["layer/weight"], hand_after[0], rtol=1e-5, atol=1e-7)
