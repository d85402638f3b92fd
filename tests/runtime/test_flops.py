"""Counting matrix products from jaxprs."""

import jax
import jax.numpy as jnp

from dovetail.runtime import matmul_flops


def test_a_product_counts_two_operations_a_multiplication():
    assert matmul_flops(jnp.matmul, jnp.ones((3, 5)), jnp.ones((5, 7))) == 2 * 3 * 5 * 7


def test_batched_products_count_each():
    assert matmul_flops(jnp.matmul, jnp.ones((4, 3, 5)), jnp.ones((4, 5, 7))) == 4 * 2 * 3 * 5 * 7


def test_a_loop_counts_every_turn_and_nested_calls_count():
    def function(x, w):
        body = jax.checkpoint(lambda x: jnp.tanh(x @ w))
        x, _ = jax.lax.scan(lambda x, _: (jax.jit(body)(x), None), x, None, length=6)
        return x

    assert matmul_flops(function, jnp.ones((3, 5)), jnp.ones((5, 5))) == 6 * 2 * 3 * 5 * 5


def test_a_grouped_product_counts_each_row_once():
    rows, matrices = jnp.ones((3, 5)), jnp.ones((4, 5, 7))
    sizes = jnp.asarray([1, 0, 2, 0])
    assert matmul_flops(jax.lax.ragged_dot, rows, matrices, sizes) == 2 * 3 * 5 * 7


def test_no_array_is_made():
    huge = jax.ShapeDtypeStruct((1 << 20, 1 << 20), jnp.float32)
    assert matmul_flops(jnp.matmul, huge, huge) == 2 * (1 << 60)
