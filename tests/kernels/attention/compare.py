"""Implementations of attention beside the reference: outputs and all gradients."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from dovetail.kernels import interpreted, prefer
from dovetail.kernels.attention import Mask, attention
from dovetail.parallel import current_placement
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
            output, vjp = jax.vjp(lambda *a: attention(*a[:3], **call, sinks_H=a[3]), *inputs)
            return output, vjp(jnp.cos(output.astype(jnp.float32)).astype(output.dtype))

    return [np.asarray(leaf) for leaf in jax.tree.leaves(jax.jit(compute)(*inputs, sinks))]


def assert_close(got: list[np.ndarray], expected: list[np.ndarray], tolerance: float) -> None:
    """Compares against the largest value of each array, for gradients are sums of many terms."""
    for one, other in zip(got, expected, strict=True):
        assert (one.shape, one.dtype) == (other.shape, other.dtype)
        one, other = np.asarray(one, np.float32), np.asarray(other, np.float32)
        assert np.isfinite(one).all()
        scale = max(1.0, float(np.abs(other).max()))
        np.testing.assert_allclose(one, other, rtol=0, atol=tolerance * scale)


def temporaries(name: str, mask: Mask, length: int, backwards: bool, width: int = 16) -> int:
    """Returns the bytes that a program for one long sequence takes on a device beside its arrays.

    It is compiled for the mesh in force, and not run.
    """
    query = jax.ShapeDtypeStruct((1, length, 2, width), jnp.float32)
    positions = jax.ShapeDtypeStruct((1, length), jnp.int32)
    placement = current_placement()
    shardings = None
    if placement is not None:
        split = placement.sharding(("batch", "sequence", None, None))
        shardings = (split, split, split, placement.sharding(("batch", "sequence")))

    def compute(query: Any, key: Any, value: Any, positions: Any) -> Any:
        call = {"q_positions_BS": positions, "kv_positions_BT": positions}
        call |= {"q_segment_ids_BS": positions, "kv_segment_ids_BT": positions}

        def attend(*arrays: Any) -> Any:
            with prefer(attention=name):
                return attention(*arrays, mask=mask, aligned=True, **call)

        output, vjp = jax.vjp(attend, query, key, value)
        return (output, vjp(output)) if backwards else output

    lowered = jax.jit(compute, in_shardings=shardings).lower(query, query, query, positions)
    return int(lowered.compile().memory_analysis().temp_size_in_bytes)


TOLERANCES = {"float32": 5e-6, "bfloat16": 0.02}
