"""Recurrent layers token by token, in numpy and double precision; and what they are held to."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from dovetail.config import Config
from dovetail.layers import TokenContext
from dovetail.module import functional
from tests.layers.cases import random_params

Array = np.ndarray
Params = dict[str, Array]
Layer = Callable[[Params, Array, Array], Array]  # one row: parameters, x [S, E], segments [S]

# Segments that begin inside of a chunk and at its border; padding before, between and behind.
SEGMENTS = np.array(
    [
        [1] * 11,
        [1, 1, 1, 2, 3, 3, 3, 3, 3, 0, 0],
        [0, 0, 1, 1, 0, 2, 2, 2, 2, 2, 2],
        [1, 1, 1, 1, 2, 2, 2, 2, 3, 3, 0],
    ],
    np.int32,
)


def packed() -> TokenContext:
    """Several sequences a row, each of which counts its positions from 0."""
    positions = np.zeros_like(SEGMENTS)
    for row, segments in enumerate(SEGMENTS):
        for segment in set(segments) - {0}:
            (where,) = np.nonzero(segments == segment)
            positions[row, where] = np.arange(len(where))
    return TokenContext(jnp.asarray(positions), jnp.asarray(SEGMENTS))


def silu(x: Array) -> Array:
    return x / (1 + np.exp(-x))


def softplus(x: Array) -> Array:
    return np.log1p(np.exp(x))


def convolved(x_SC: Array, weight_TC: Array, bias_C: Array | float = 0.0) -> Array:
    """One sequence, with nothing before it."""
    taps = len(weight_TC)
    result = np.zeros_like(x_SC)
    for s in range(len(x_SC)):
        for back in range(min(taps, s + 1)):
            result[s] += weight_TC[taps - 1 - back] * x_SC[s - back]
    return silu(result + bias_C)


def by_segment(layer: Callable[[Params, Array], Array]) -> Layer:
    """Runs a layer on each sequence of a row as if there were no other."""

    def run(params: Params, x_SE: Array, segments_S: Array) -> Array:
        result = np.zeros_like(x_SE)
        for segment in sorted(set(segments_S) - {0}):
            (where,) = np.nonzero(segments_S == segment)
            result[where] = layer(params, x_SE[where])
        return result

    return run


def check_values_and_gradients(config: Config[Any], layer: Layer, width: int) -> None:
    """Compares a layer with its recurrence, and its gradients with differences of that."""
    module, context = config.build(), packed()
    params, random = random_params(module), np.random.default_rng(1)
    x = random.normal(size=(*SEGMENTS.shape, width))
    is_real = SEGMENTS[..., None] > 0
    waves = np.sin(np.arange(x.size)).reshape(x.shape) * is_real

    def ours(params: Any, x: Any) -> Any:
        return functional(module, params, (x, context))[0]

    def loss(params: Any, x: Any) -> Any:
        return jnp.vdot(ours(params, x), waves)

    def reference(params: Params, x: Array) -> Array:
        return np.stack([layer(params, *row) for row in zip(x, SEGMENTS, strict=True)])

    exact = {path: np.asarray(value, np.float64) for path, value in params.items()}
    result = np.asarray(jax.jit(ours)(params, jnp.asarray(x, jnp.float32)))
    expected = reference(exact, x)
    np.testing.assert_allclose(result * is_real, expected, rtol=2e-4, atol=2e-5)
    gradients, by_x = jax.jit(jax.grad(loss, (0, 1)))(params, jnp.asarray(x, jnp.float32))
    for path, gradient in {**gradients, "x": by_x}.items():
        direction = random.normal(size=gradient.shape)

        def moved(by: float, path: str = path, along: Array = direction) -> float:
            inputs = {**exact, "x": x}
            inputs[path] = inputs[path] + by * along
            return float(np.vdot(reference(inputs, inputs["x"]), waves))

        slope = (moved(1e-5) - moved(-1e-5)) / 2e-5
        found = float(np.vdot(gradient, direction))
        size = float(np.linalg.norm(gradient) * np.linalg.norm(direction))
        assert abs(found - slope) < 1e-4 * size, (path, found, slope)
        assert size > 0, f"{path} has no gradient"
