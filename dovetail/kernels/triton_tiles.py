"""Tiles that Triton multiplies: what Pallas kernels for GPUs share.

Triton's tiles have powers of two as sides, from 16 on.
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
    """Returns why there is no Triton here, or None if there is."""
    if find_spec(LIBRARY) is None:
        return f"this JAX ({jax.__version__}) has no {LIBRARY}"
    return None


def side_of(size: int, largest: int) -> int:
    """Returns the largest power of two that divides a size, up to one."""
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
    """Makes a Pallas call for Triton, over arrays as a whole."""
    from jax.experimental import pallas
    from jax.experimental.pallas import triton as library

    settings = library.CompilerParams(num_warps=warps, num_stages=stages)
    return pallas.pallas_call(kernel, compiler_params=settings, **options)
