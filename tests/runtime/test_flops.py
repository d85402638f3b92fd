"""Counting matrix products from jaxprs."""

from typing import Any

import jax
import jax.numpy as jnp

from dovetail.runtime import matmul_flops_by_dtype, matmul_flops_of


def matmul_flops(function: Any, *args: Any) -> int:
    return matmul_flops_of(jax.make_jaxpr(function)(*args).jaxpr)


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


def test_a_ragged_product_counts_each_row_once():
    x, weight, sizes = jnp.ones((6, 5)), jnp.ones((4, 5, 7)), jnp.asarray([2, 0, 3, 1])
    once = 2 * 6 * 5 * 7
    assert matmul_flops(jax.lax.ragged_dot, x, weight, sizes) == once

    def gradients(x, weight):
        _, pull = jax.vjp(lambda x, weight: jax.lax.ragged_dot(x, weight, sizes), x, weight)
        return pull(jnp.ones((6, 7)))

    # The forward pass is counted with it, and one product each for x and for the weight.
    assert matmul_flops(gradients, x, weight) == 3 * once


def test_no_array_is_made():
    huge = jax.ShapeDtypeStruct((1 << 20, 1 << 20), jnp.float32)
    assert matmul_flops(jnp.matmul, huge, huge) == 2 * (1 << 60)


def test_flops_are_counted_by_dtype():
    def function(x, w, small):
        y, _ = jax.lax.scan(lambda y, _: (y @ w, None), x, None, length=4)
        return jax.lax.dot_general(small, small, (((1,), (1,)), ((), ())), None, jnp.int32), y

    args = (
        jnp.ones((3, 5), jnp.bfloat16),
        jnp.ones((5, 5), jnp.bfloat16),
        jnp.ones((3, 5), jnp.int8),
    )
    assert matmul_flops_by_dtype(function, *args) == {
        "bfloat16": 4 * 2 * 3 * 5 * 5,
        "int8": 2 * 3 * 5 * 3,
    }
