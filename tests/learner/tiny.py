"""A tiny model for the tests: stacked layers, two losses of different weights, a variable.

B batch, S sequence, E embed, M mlp, V vocab.
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp

from dovetail.learner import ConstantSchedule, Learner, TrainState
from dovetail.module import ConstantInitializer as Fill
from dovetail.module import (
    Module,
    initialize,
    initialize_variables,
    parameter,
    repeated,
    scan,
    variable,
)

VOCAB, WIDTH, LAYERS = 16, 8, 3
KEY = jax.random.key(11)


class Layer(Module):
    """A square and an oblong matrix, a scale that does not decay, and a loss of its own."""

    class Config(Module.Config["Layer"]):
        noise: float = 0.0

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self.noise = config.noise
        matrix = {"fan_in": (0,), "fan_out": (1,)}
        self.mix = parameter((WIDTH, WIDTH), ("embed", "heads"), **matrix)
        self.up = parameter((WIDTH, 2 * WIDTH), ("embed", "mlp"), **matrix)
        self.down = parameter((2 * WIDTH, WIDTH), ("mlp", "embed"), **matrix)
        self.scale = parameter((WIDTH,), ("embed",), Fill.Config(value=1.0), decays=False)

    def __call__(self, x_BSE: Any, weights_BS: Any) -> Any:
        hidden_BSM = jax.nn.silu((x_BSE * self.scale) @ self.mix @ self.up)
        # A loss that counts other things than the main one: tokens of even weight, say.
        counted_BS = jnp.where(weights_BS > 1, 1.0, 0.0)
        self.add_loss(
            "balance", 0.1 * (hidden_BSM.mean(-1) ** 2 * counted_BS).sum(), counted_BS.sum()
        )
        out_BSE = x_BSE + hidden_BSM @ self.down
        if self.noise:
            out_BSE += self.noise * jax.random.uniform(self.random_key(), out_BSE.shape)
        return out_BSE


class Net(Module):
    """Embedding, stack, head, loss."""

    class Config(Module.Config["Net"]):
        noise: float = 0.0

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self.embed = parameter((VOCAB, WIDTH), ("vocab", "embed"), Fill.Config(value=0.5))
        self.layer = repeated(Layer.Config(noise=config.noise).build(), LAYERS)
        self.head = parameter((WIDTH, VOCAB), ("embed", "vocab"), fan_in=(0,), fan_out=(1,))
        self.seen = variable((), (), Fill.Config(value=0.0))

    def __call__(self, tokens: Any, targets: Any, weights: Any) -> Any:
        x_BSE = self.embed[tokens] + jnp.sin(jnp.arange(WIDTH) * (1 + tokens[..., None])).astype(
            self.embed.dtype
        )
        x_BSE, _ = scan(self.layer, lambda x, _: (self.layer(x, weights), None), x_BSE)
        logits_BSV = (x_BSE @ self.head).astype(jnp.float32)
        log_likelihood_BS = jnp.take_along_axis(
            jax.nn.log_softmax(logits_BSV), targets[..., None], -1
        )[..., 0]
        self.add_loss("cross_entropy", -(log_likelihood_BS * weights).sum(), weights.sum())
        self.add_summary("largest_token", tokens.max())
        self.seen = self.seen + weights.sum()


def make_batch(rows: int = 8, seed: int = 0) -> dict[str, jax.Array]:
    """Rows with very different token counts; weights 0, 1 and 2."""
    keys = jax.random.split(jax.random.key(seed), 3)
    shape = (rows, 6)
    lengths = jnp.arange(rows) % 6 + 1
    some = jnp.arange(6)[None] < lengths[:, None]
    return {
        "tokens": jax.random.randint(keys[0], shape, 0, VOCAB),
        "targets": jax.random.randint(keys[1], shape, 0, VOCAB),
        "weights": some * jax.random.randint(keys[2], shape, 1, 3).astype(jnp.float32),
    }


def make_learner(**values: Any) -> Learner:
    """A learner with a constant rate, and no clipping unless asked for."""
    defaults = {"schedule": ConstantSchedule.Config(peak=0.01), "clip_norm": None}
    return Learner.Config(**(defaults | values)).build()


@functools.cache
def initial(kind: type[Module]) -> tuple[dict[str, jax.Array], dict[str, jax.Array]]:
    """The first parameters and variables of a kind of model, made once for all tests."""
    model = kind.Config().build()
    return initialize(model, KEY), initialize_variables(model, KEY)


def start(learner: Learner, model: Module) -> TrainState:
    """The first state."""
    params, variables = initial(type(model))
    return learner.init(model, params, variables)


def take_steps(
    learner: Learner, model: Module, batches: list[Any], state: TrainState | None = None
) -> Any:
    """Takes one donated, jitted step a batch; returns the last state and all reports."""
    # A copy, since the tests go on to use what they give.
    state = jax.tree.map(jnp.copy, start(learner, model) if state is None else state)
    step = jax.jit(lambda s, b: learner.step(model, s, b, KEY), donate_argnums=0)
    reports = []
    for batch in batches:
        state, report = step(state, batch)
        reports.append(report)
    return state, reports
