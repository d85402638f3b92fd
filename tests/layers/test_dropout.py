"""Dropout: only in training, another mask for every layer of a stack, the same for the same key."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dovetail.config import REQUIRED, ConfigError, ConfigOf, select
from dovetail.layers import Dropout, PreNorm, Stack, TokenContext, TokenMap
from dovetail.module import Module, functional
from tests.layers.cases import WIDTH, Joined, block, mixing, random_params, vectors

LAYERS = 4


class Dropping(Module):
    """A layer of which all is dropout; it shows its mask."""

    class Config(Module.Config["Dropping"]):
        width: int = REQUIRED
        dropout: ConfigOf[TokenMap] = Dropout.Config(rate=0.5)

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self.dropout = config.dropout.build()

    def __call__(self, x_BSE: jax.Array, context: TokenContext) -> jax.Array:
        first, second = self.dropout(jnp.ones_like(x_BSE)), self.dropout(jnp.ones_like(x_BSE))
        self.add_output("masks", jnp.stack([first == 0, second == 0]))
        return x_BSE


def masks(key: int, unroll: int = 1, training: bool = True) -> np.ndarray:
    """Returns the masks of all layers: [layers, calls, batch, sequence, width]."""
    layer = Dropping.Config()
    stack = Stack.Config(width=WIDTH, num_layers=LAYERS, layer=layer, unroll=unroll).build()
    run = jax.jit(lambda key, inputs: functional(stack, {}, inputs, key=key, training=training)[1])
    return np.asarray(run(jax.random.key(key), mixing()).outputs["layer/masks"])


def test_nothing_is_dropped_outside_of_training() -> None:
    assert not masks(0, training=False).any()


def test_masks_differ_by_layer_and_by_call() -> None:
    flat = masks(0).reshape(LAYERS * 2, -1)
    assert len({mask.tobytes() for mask in flat}) == LAYERS * 2


def test_masks_are_reproducible_and_follow_the_key() -> None:
    assert (masks(0) == masks(0)).all()
    assert (masks(0) == masks(0, unroll=LAYERS)).all()
    assert (masks(0) != masks(1)).any()


def test_the_rate_is_kept_and_so_is_the_mean() -> None:
    dropout = Dropout.Config(rate=0.2).build()
    ones = jnp.ones((500, 400))
    dropped, _ = functional(dropout, {}, ones, key=jax.random.key(0), training=True)
    assert np.unique(dropped) == pytest.approx([0.0, 1.25])
    assert np.mean(np.asarray(dropped) == 0) == pytest.approx(0.2, abs=0.005)
    assert np.mean(dropped) == pytest.approx(1.0, abs=0.01)


def test_a_rate_of_zero_needs_no_key() -> None:
    ones = jnp.ones((2, 3))
    assert functional(Dropout.Config().build(), {}, ones, training=True)[0] is ones


@pytest.mark.parametrize("rate", [-0.1, 1.0])
def test_a_rate_out_of_range(rate: float) -> None:
    config = select(block(), Dropout).set(rate=rate).set(width=WIDTH)
    with pytest.raises(ConfigError) as caught:
        config.build()
    assert str(caught.value) == (
        f"attention_residual.dropout.rate: expected 0 or more and less than 1, got {rate}."
    )


def test_a_residual_drops_from_the_sublayer_output_alone() -> None:
    module = Joined.Config(residual=PreNorm.Config(dropout=Dropout.Config(rate=0.5))).build()
    params, x = random_params(module), vectors()
    branch = functional(module, params, x)[0] - x
    dropped = functional(module, params, x, key=jax.random.key(1), training=True)[0] - x
    is_kept = np.abs(dropped) > 1e-6
    assert 0.4 < is_kept.mean() < 0.6
    np.testing.assert_allclose(dropped[is_kept], 2 * branch[is_kept], rtol=1e-3)
