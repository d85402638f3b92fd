"""Products of numbers that are rounded to a small type first, each row and column by its own scale.

A scale is found anew in every call: the largest number of a row of x, or of a column of the weight,
becomes the largest that the type has. A product sums over neither, so both scales come out of it:

    y = (x / x_scale) @ (weight / weight_scale) * x_scale * weight_scale

Going backwards, the sum is over the columns (for x) or over the rows (for the weight), along which
these scales vary. There they are multiplied into the gradient, before that is rounded in its turn;
so the rounded x and weight of the forward pass serve again, and nothing larger is kept.

N rows, E in, F out, X experts.
"""

from __future__ import annotations

import functools
import operator
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp

from dovetail.config import Part
from dovetail.module import Grouped, multiply


class RoundedProduct(Part):
    """A product in a small type; a subclass says in which.

    Experts that run as one grouped product share the scale of a column, over the rows that are on
    one device. That product is the usual one, given the rounded numbers in the type that came in,
    which holds them exactly: the result is that of the small type, without the speed.
    """

    values: ClassVar[str]
    """The type of x and of the weight."""
    gradients: ClassVar[str]
    """The type of the gradient in the product that gives the gradient of x."""
    weight_gradients: ClassVar[str | None]
    """The same for the gradient of the weight; None leaves it in the type that it comes in."""

    def __call__(self, x: jax.Array, weight: jax.Array | Grouped) -> jax.Array:
        """Maps [..., in] and [in, out] to [..., out]."""
        types = (self.values, self.gradients, self.weight_gradients)
        plan = Plan(*types, x.dtype.name, weight.dtype.name)
        return multiply(x, weight, functools.partial(_multiply, plan))


class Plan(NamedTuple):
    """The types: of what is rounded, and of what comes in."""

    values: str
    gradients: str
    weight_gradients: str | None
    x: str
    weight: str


class Rounded(NamedTuple):
    """Numbers of a small type, and what each stands for a multiple of (float32)."""

    numbers: jax.Array
    scale: jax.Array


def rounded(values: jax.Array, axes: tuple[int, ...], dtype: str) -> Rounded:
    """Rounds to a type whose range is the largest number along some axes.

    What is not finite stays so: a scale that is not a number makes none.
    """
    is_integer = jnp.issubdtype(jnp.dtype(dtype), jnp.integer)
    limit = float(jnp.iinfo(dtype).max if is_integer else jnp.finfo(dtype).max)
    values = values.astype(jnp.float32)
    largest = jnp.abs(values).max(axes, keepdims=True)
    scale = jnp.where(largest == 0, 1.0, largest / limit)
    scaled = jnp.clip(values / scale, -limit, limit)
    return Rounded((jnp.round(scaled) if is_integer else scaled).astype(dtype), scale)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0, 1))
def _multiply(plan: Plan, product: Any, x: jax.Array, weight: jax.Array, *more: Any) -> jax.Array:
    return _forward(plan, product, x, weight, *more)[0]


def _forward(plan: Plan, product: Any, x: jax.Array, weight: jax.Array, *more: Any) -> Any:
    x_ = rounded(x, (x.ndim - 1,), plan.values)
    weight_ = rounded(weight, tuple(range(weight.ndim - 1)), plan.values)
    weight_ = Rounded(weight_.numbers, weight_.scale.reshape(-1))
    y = _product(plan, product, more)(x_.numbers, weight_.numbers).astype(jnp.float32)
    y = (y * x_.scale * weight_.scale).astype(jnp.result_type(plan.x, plan.weight))
    return y, (x_, weight_, more)


def _backward(plan: Plan, product: Any, kept: Any, gradient: jax.Array) -> Any:
    x, weight, more = kept
    gradient = gradient.astype(jnp.float32)
    rows = tuple(range(gradient.ndim - 1))
    for_x = rounded(gradient * weight.scale, (gradient.ndim - 1,), plan.gradients)
    by_x = _by_x(plan, product, more)(x.numbers, weight.numbers, for_x.numbers) * for_x.scale
    if plan.weight_gradients is None:
        back = (x.numbers * x.scale).astype(plan.x)
        for_weight = Rounded(gradient.astype(plan.x), jnp.ones(()))
    else:
        back, for_weight = x.numbers, rounded(gradient * x.scale, rows, plan.weight_gradients)
    by_weight = _by_weight(plan, product, more)(back, weight.numbers, for_weight.numbers)
    by_weight = by_weight * for_weight.scale.reshape(-1)
    return by_x.astype(plan.x), by_weight.astype(plan.weight), *(None for _ in more)


_multiply.defvjp(_forward, _backward)


# The three products. Plain ones are XLA's, of the small types themselves; a grouped one is the
# given product in the type that came in, and what follows from it.


def _product(plan: Plan, product: Any, more: tuple[Any, ...]) -> Any:
    if product is operator.matmul:
        return lambda x, weight: _dot(x, weight, (x.ndim - 1,), (0,))
    return lambda x, weight: product(x.astype(plan.x), weight.astype(plan.x), *more)


def _by_x(plan: Plan, product: Any, more: tuple[Any, ...]) -> Any:
    if product is operator.matmul:
        return lambda x, weight, gradient: _dot(gradient, weight, (gradient.ndim - 1,), (1,))
    return lambda *arrays: _pulled(plan, product, more, *arrays)[0]


def _by_weight(plan: Plan, product: Any, more: tuple[Any, ...]) -> Any:
    if product is operator.matmul:
        return lambda x, weight, gradient: _dot(x, gradient, *[tuple(range(x.ndim - 1))] * 2)
    return lambda *arrays: _pulled(plan, product, more, *arrays)[1]


def _pulled(plan: Plan, product: Any, more: Any, x: Any, weight: Any, gradient: Any) -> Any:
    """Returns the gradients of a grouped product, in float32."""
    _, pull = jax.vjp(_product(plan, product, more), x.astype(plan.x), weight.astype(plan.x))
    return [array.astype(jnp.float32) for array in pull(gradient.astype(plan.x))]


def _dot(
    left: jax.Array, right: jax.Array, over: tuple[int, ...], and_over: tuple[int, ...]
) -> jax.Array:
    """Sums over axes of both; integers in int32, all else in float32."""
    is_integer = jnp.issubdtype(left.dtype, jnp.integer)
    result = jax.lax.dot_general(
        left,
        right,
        ((over, and_over), ((), ())),
        preferred_element_type=jnp.int32 if is_integer else jnp.float32,
    )
    return result.astype(jnp.float32)
