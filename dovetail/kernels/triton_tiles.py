"""Shared by the Pallas kernels for Triton: tile sizes, matmuls of tiles, and the call.

The sides of Triton's tiles are powers of two, at least 16.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib.util import find_spec
from typing import Any

import jax
import jax.numpy as jnp

LIBRARY = "jax.experimental.pallas.triton"
SMALLEST_SIDE = 16


def missing_library() -> str | None:
    """Returns why Pallas for Triton is not available, or None if it is."""
    if find_spec(LIBRARY) is None:
        return f"this JAX ({jax.__version__}) has no {LIBRARY}"
    return None


def side_of(size: int, largest: int) -> int:
    """Returns the largest power of two up to `largest` that divides a size."""
    side = largest
    while size % side:
        side //= 2
    return side


def dot(left: Any, right: Any, trans_a: bool = False, trans_b: bool = False) -> Any:
    """Multiplies two tiles; float32 is not rounded to TF32."""
    from jax.experimental.pallas import triton as library

    exact = jax.lax.Precision.HIGHEST if left.dtype == jnp.float32 else None
    return library.dot(left, right, trans_a=trans_a, trans_b=trans_b, precision=exact)


def call(kernel: Callable[..., None], *, warps: int, stages: int, **options: Any) -> Any:
    """Returns a `pallas_call` for Triton; the kernel slices the arrays itself."""
    from jax.experimental import pallas
    from jax.experimental.pallas import triton as library

    settings = library.CompilerParams(num_warps=warps, num_stages=stages)
    return pallas.pallas_call(kernel, compiler_params=settings, **options)
