"""Quantized matmuls for training, with dynamic scales per row and per column.

A scale is computed in every call: it maps the absolute maximum of a row of x, or of a column of the
weight, to the largest value of the dtype. The contraction is over neither axis, so both scales
factor out:

    y = (x / x_scale) @ (weight / weight_scale) * x_scale * weight_scale

The backward matmuls contract over columns (dx) or rows (dweight), along which these scales vary. So
they are multiplied into dy, before dy is quantized in turn. The quantized x and weight of the
forward pass are reused, and nothing larger is saved.

N rows, E in, F out, X experts.
"""

from __future__ import annotations

import functools
import operator
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp

from dovetail.config import Component
from dovetail.module import GroupedParameter, matmul_with


class QuantizedMatmul(Component):
    """A matmul in a low-precision dtype, which a subclass sets.

    Experts that run as one grouped matmul share the scale of each column, over the rows of one
    device. There is no grouped matmul of such dtypes: it runs in the input dtype, which represents
    the quantized values exactly. The result is the same, without the speed.
    """

    values: ClassVar[str]
    """The dtype of x and of the weight."""
    gradients: ClassVar[str]
    """The dtype of dy in the matmul for dx."""
    weight_gradients: ClassVar[str | None]
    """The dtype of dy in the matmul for dweight; None does not quantize it."""

    def __call__(self, x: jax.Array, weight: jax.Array | GroupedParameter) -> jax.Array:
        """Maps [..., in] and [in, out] to [..., out]."""
        types = (self.values, self.gradients, self.weight_gradients)
        dtypes = MatmulDtypes(*types, x.dtype.name, weight.dtype.name)
        return matmul_with(x, weight, functools.partial(_multiply, dtypes))


class MatmulDtypes(NamedTuple):
    """The dtypes of the quantized values, and of the inputs."""

    values: str
    gradients: str
    weight_gradients: str | None
    x: str
    weight: str


class Quantized(NamedTuple):
    """Quantized values and their scale (float32)."""

    values: jax.Array
    scale: jax.Array


def quantize(values: jax.Array, axes: tuple[int, ...], dtype: str) -> Quantized:
    """Quantizes with the absolute maximum along some axes as the scale.

    A row that is not finite gets a scale that is not finite, so NaNs stay NaNs.
    """
    is_integer = jnp.issubdtype(jnp.dtype(dtype), jnp.integer)
    limit = float(jnp.iinfo(dtype).max if is_integer else jnp.finfo(dtype).max)
    values = values.astype(jnp.float32)
    amax = jnp.abs(values).max(axes, keepdims=True)
    scale = jnp.where(amax == 0, 1.0, amax / limit)
    scaled = jnp.clip(values / scale, -limit, limit)
    return Quantized((jnp.round(scaled) if is_integer else scaled).astype(dtype), scale)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0, 1))
def _multiply(
    dtypes: MatmulDtypes, matmul: Any, x: jax.Array, weight: jax.Array, *more: Any
) -> jax.Array:
    return _forward(dtypes, matmul, x, weight, *more)[0]


def _forward(dtypes: MatmulDtypes, matmul: Any, x: jax.Array, weight: jax.Array, *more: Any) -> Any:
    x_ = quantize(x, (x.ndim - 1,), dtypes.values)
    weight_ = quantize(weight, tuple(range(weight.ndim - 1)), dtypes.values)
    weight_ = Quantized(weight_.values, weight_.scale.reshape(-1))
    y = _forward_matmul(dtypes, matmul, more)(x_.values, weight_.values).astype(jnp.float32)
    y = (y * x_.scale * weight_.scale).astype(jnp.result_type(dtypes.x, dtypes.weight))
    return y, (x_, weight_, more)


def _backward(dtypes: MatmulDtypes, matmul: Any, residuals: Any, dy: jax.Array) -> Any:
    x, weight, more = residuals
    dy = dy.astype(jnp.float32)
    rows = tuple(range(dy.ndim - 1))
    dy_x = quantize(dy * weight.scale, (dy.ndim - 1,), dtypes.gradients)
    dx = _dx_matmul(dtypes, matmul, more)(x.values, weight.values, dy_x.values) * dy_x.scale
    if dtypes.weight_gradients is None:
        back = (x.values * x.scale).astype(dtypes.x)
        dy_weight = Quantized(dy.astype(dtypes.x), jnp.ones(()))
    else:
        back, dy_weight = x.values, quantize(dy * x.scale, rows, dtypes.weight_gradients)
    dweight = _dweight_matmul(dtypes, matmul, more)(back, weight.values, dy_weight.values)
    dweight = dweight * dy_weight.scale.reshape(-1)
    return dx.astype(dtypes.x), dweight.astype(dtypes.weight), *(None for _ in more)


_multiply.defvjp(_forward, _backward)


# The three matmuls. Plain ones use XLA's dot of the quantized dtypes. Grouped ones use the given
# matmul, and its vjp, in the input dtype.


def _forward_matmul(dtypes: MatmulDtypes, matmul: Any, more: tuple[Any, ...]) -> Any:
    if matmul is operator.matmul:
        return lambda x, weight: _dot(x, weight, (x.ndim - 1,), (0,))
    return lambda x, weight: matmul(x.astype(dtypes.x), weight.astype(dtypes.x), *more)


def _dx_matmul(dtypes: MatmulDtypes, matmul: Any, more: tuple[Any, ...]) -> Any:
    if matmul is operator.matmul:
        return lambda x, weight, dy: _dot(dy, weight, (dy.ndim - 1,), (1,))
    return lambda *arrays: _grouped_vjp(dtypes, matmul, more, *arrays)[0]


def _dweight_matmul(dtypes: MatmulDtypes, matmul: Any, more: tuple[Any, ...]) -> Any:
    if matmul is operator.matmul:
        return lambda x, weight, dy: _dot(x, dy, *[tuple(range(x.ndim - 1))] * 2)
    return lambda *arrays: _grouped_vjp(dtypes, matmul, more, *arrays)[1]


def _grouped_vjp(dtypes: MatmulDtypes, matmul: Any, more: Any, x: Any, weight: Any, dy: Any) -> Any:
    """Returns the gradients of a grouped matmul, in float32."""
    _, vjp = jax.vjp(
        _forward_matmul(dtypes, matmul, more), x.astype(dtypes.x), weight.astype(dtypes.x)
    )
    return [array.astype(jnp.float32) for array in vjp(dy.astype(dtypes.x))]


def _dot(
    left: jax.Array, right: jax.Array, left_axes: tuple[int, ...], right_axes: tuple[int, ...]
) -> jax.Array:
    """Contracts axes of both; integers accumulate in int32, floats in float32."""
    is_integer = jnp.issubdtype(left.dtype, jnp.integer)
    result = jax.lax.dot_general(
        left,
        right,
        ((left_axes, right_axes), ((), ())),
        preferred_element_type=jnp.int32 if is_integer else jnp.float32,
    )
    return result.astype(jnp.float32)


class Fp8Matmul(QuantizedMatmul):
    """FP8: e4m3 values and e5m2 gradients (https://arxiv.org/abs/2209.05433).

    Gradients need range more than precision. Hardware without FP8 matmuls converts to a wider
    dtype: the same result, without the speed.
    """

    values: ClassVar[str] = "float8_e4m3fn"
    gradients: ClassVar[str] = "float8_e5m2"
    weight_gradients: ClassVar[str | None] = "float8_e5m2"


class Int8Matmul(QuantizedMatmul):
    """int8 values and gradients; only dweight is computed in the input dtype.

    It contracts over all tokens of a batch, so its quantization errors matter most. SwitchBack
    (https://arxiv.org/abs/2304.13013) excludes it for the same reason.
    """

    values: ClassVar[str] = "int8"
    gradients: ClassVar[str] = "int8"
    weight_gradients: ClassVar[str | None] = None
