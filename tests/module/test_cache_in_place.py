"""The cache of a scanned stack: created stacked, then updated in the carry with no second copy."""

import jax
import jax.numpy as jnp
import numpy as np

from dovetail.module import Module, functional
from tests.module.example_modules import Stack

LAYERS, BATCH, LENGTH, WIDTH = 8, 4, 256, 64
LAYER_BYTES = 4 * BATCH * LENGTH * WIDTH


class Memory(Module):
    """Writes each token into its parameter_slice, and returns the mean of what it has seen."""

    def __call__(self, x_BE: jax.Array) -> jax.Array:
        past_BTE, position = self.read_cache("past"), self.read_cache("position")
        if past_BTE is None:
            past_BTE, position = jnp.zeros((BATCH, LENGTH, WIDTH)), jnp.zeros((), jnp.int32)
        past_BTE = jax.lax.dynamic_update_index_in_dim(past_BTE, x_BE, position, 1)
        self.write_cache("past", past_BTE)
        self.write_cache("position", position + 1)
        return x_BE + past_BTE.sum(1) / (position + 1)


MODEL = Stack.Config(layer=Memory.Config(), num_layers=LAYERS).build()
X_BE = jax.random.normal(jax.random.key(0), (BATCH, WIDTH))


def step(cache, x_BE):
    result, outputs = functional(MODEL, {}, x_BE, cache=cache)
    return result, outputs.cache


def test_created_stacked_then_updated_like_a_python_loop() -> None:
    past_LBTE = np.zeros((LAYERS, BATCH, LENGTH, WIDTH), np.float32)
    cache = None
    for position in range(3):
        result, cache = jax.jit(step)(cache, X_BE)
        assert cache["layer/past"].shape == past_LBTE.shape
        expected = np.asarray(X_BE)
        for layer in range(LAYERS):
            past_LBTE[layer, :, position] = expected
            expected = expected + past_LBTE[layer].sum(1) / (position + 1)
        np.testing.assert_allclose(result, expected, rtol=1e-4)
    np.testing.assert_allclose(cache["layer/past"], past_LBTE, rtol=1e-4)
    np.testing.assert_array_equal(cache["layer/position"], [3] * LAYERS)


def test_the_compiled_program_holds_no_second_cache() -> None:
    cache = jax.eval_shape(lambda x: step(None, x)[1], X_BE)
    compiled = jax.jit(step, donate_argnums=0).lower(cache, X_BE).compile()
    memory = compiled.memory_analysis()
    assert memory.alias_size_in_bytes >= LAYERS * LAYER_BYTES, "the new cache is the old memory"
    assert memory.temp_size_in_bytes < 3 * LAYER_BYTES, "at most a layer or two, not the stack"


def test_a_cache_of_another_shape_is_refused() -> None:
    class Grows(Module):
        def __call__(self, x: jax.Array) -> jax.Array:
            past = self.read_cache("past")
            self.write_cache("past", x if past is None else jnp.concatenate([past, x]))
            return x

    model = Stack.Config(layer=Grows.Config(), num_layers=2).build()
    _, outputs = functional(model, {}, X_BE)
    import pytest

    with pytest.raises(
        ValueError, match=r"'layer/past' has the shape \(4, 64\) in each layer, and \(8, 64\)"
    ):
        functional(model, {}, X_BE, cache=outputs.cache)
