"""Implementations of attention beside the reference: outputs and all gradients."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from dovetail.kernels import interpreted, prefer
from dovetail.kernels.attention import attention
from tests.kernels.attention.cases import Arrays


def results(
    name: str,
    inputs: Arrays,
    call: dict[str, Any],
    sinks: Any = None,
    platform: str | None = None,
) -> list[np.ndarray]:
    """Returns output and gradients; on a platform that is not here, its kernels interpreted."""
    there: AbstractContextManager[Any] = interpreted(platform) if platform else nullcontext()

    def compute(*inputs: Any) -> Any:
        with prefer(attention=name), there:
            mixed, pull = jax.vjp(lambda *a: attention(*a[:3], **call, sinks_H=a[3]), *inputs)
            return mixed, pull(jnp.cos(mixed.astype(jnp.float32)).astype(mixed.dtype))

    return [np.asarray(leaf) for leaf in jax.tree.leaves(jax.jit(compute)(*inputs, sinks))]


def assert_close(got: list[np.ndarray], expected: list[np.ndarray], tolerance: float) -> None:
    """Compares against the largest value of each array, for gradients are sums of many terms."""
    for one, other in zip(got, expected, strict=True):
        assert (one.shape, one.dtype) == (other.shape, other.dtype)
        one, other = np.asarray(one, np.float32), np.asarray(other, np.float32)
        assert np.isfinite(one).all()
        scale = max(1.0, float(np.abs(other).max()))
        np.testing.assert_allclose(one, other, rtol=0, atol=tolerance * scale)


TOLERANCES = {"float32": 5e-6, "bfloat16": 0.02}
