"""Learned score biases: values and all gradients, against autodiff through the reference."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dovetail.kernels import interpreted, prefer
from dovetail.kernels.attention import (
    Causal,
    Full,
    Mask,
    ScoreBias,
    SlidingWindow,
    SoftCap,
    attention,
)
from dovetail.kernels.attention.xla import blockwise as blockwise_module
from dovetail.kernels.attention.xla import looped as looped_module
from dovetail.parallel import use_placement
from tests.kernels.attention.biases import BucketBias, MLPBias, Slope
from tests.kernels.attention.cases import aligned_call, arrays
from tests.kernels.attention.compare import assert_close
from tests.kernels.attention.test_context_parallel import placement_of

LENGTH, HEADS, KV_HEADS, BUCKETS = 144, 4, 2, 12


def bias_of(kind: str, dtype: str = "float32") -> ScoreBias:
    draw = np.random.default_rng(7).standard_normal
    if kind == "table":
        return BucketBias(jnp.asarray(draw((BUCKETS, HEADS)), dtype))
    outer = jnp.asarray(draw((6, HEADS)), dtype)
    return MLPBias(jnp.asarray(0.3, dtype), jnp.asarray(draw((2, 6)), dtype), outer)


def results(
    name: str,
    mask: Mask,
    bias: ScoreBias,
    mesh: AbstractContextManager[Any] | None = None,
    dtype: str = "float32",
    **options: Any,
) -> list[np.ndarray]:
    """Returns the output, and the gradients of q, k, v and the arrays of the bias."""
    call = aligned_call(mask, 4, LENGTH, is_packed=True) | options
    inputs = (*arrays(4, LENGTH, LENGTH, HEADS, KV_HEADS, 8, dtype), bias)

    def compute(*inputs: Any) -> Any:
        with prefer(attention=name), mesh or nullcontext():
            attend = lambda q, k, v, bias: attention(q, k, v, **call, score_bias=bias)  # noqa: E731
            output, vjp = jax.vjp(attend, *inputs)
            return output, vjp(jnp.cos(output.astype(jnp.float32)).astype(output.dtype))

    return [np.asarray(leaf) for leaf in jax.tree.leaves(jax.jit(compute)(*inputs))]


KINDS = pytest.mark.parametrize("kind", ["table", "mlp"])
MASKS = pytest.mark.parametrize("mask", [Causal(), Full()], ids=str)


@KINDS
@MASKS
def test_blockwise(mask: Mask, kind: str) -> None:
    bias = bias_of(kind)
    expected = results("reference", mask, bias)
    assert all(np.abs(gradient).max() > 1e-3 for gradient in expected[4:])
    assert_close(results("blockwise", mask, bias), expected, 1e-5)


@KINDS
@MASKS
def test_looped(mask: Mask, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = results("reference", mask, bias_of(kind))
    monkeypatch.setattr(looped_module, "BLOCK", 32)  # the last block is padded
    monkeypatch.setattr(blockwise_module, "SHORT", 0)
    assert_close(results("blockwise", mask, bias_of(kind)), expected, 1e-5)


@pytest.mark.parametrize(
    "sizes", [{"sequence": 8}, {"data": 2, "sequence": 2, "model": 2}], ids=str
)
@KINDS
@MASKS
def test_ring(mask: Mask, kind: str, sizes: dict[str, int]) -> None:
    """The heads of a device are those of the whole, and gradients are summed over devices."""
    bias = bias_of(kind)
    got = results("ring", mask, bias, use_placement(placement_of(**sizes)))
    assert_close(got, results("reference", mask, bias), 1e-5)


def test_a_static_bias_on_a_ring_whose_heads_are_sharded() -> None:
    mesh = use_placement(placement_of(data=2, sequence=2, model=2))
    got = results("ring", Causal(), Slope(), mesh)
    assert_close(got, results("reference", Causal(), Slope()), 1e-5)


@pytest.mark.parametrize("name", ["blockwise", "ring"])
def test_beside_a_soft_cap_and_a_window(name: str) -> None:
    """The bias is added after the soft cap: its gradient does not go through the cap's."""
    mesh = use_placement(placement_of(data=2, sequence=4)) if name == "ring" else None
    options = {"score_map": SoftCap(1.5)}
    got = results(name, SlidingWindow(40), bias_of("table"), mesh, **options)
    expected = results("reference", SlidingWindow(40), bias_of("table"), **options)
    assert_close(got, expected, 1e-5)


def test_gradients_have_the_dtype_of_the_arrays() -> None:
    """They are accumulated in float32, whatever the dtypes."""
    got = results("blockwise", Causal(), bias_of("table", "bfloat16"))
    assert got[-1].dtype == jnp.bfloat16
    rounded = BucketBias(bias_of("table", "bfloat16").table.astype(jnp.float32))  # type: ignore[attr-defined]
    exact = results("blockwise", Causal(), rounded)
    np.testing.assert_array_equal(got[-1], exact[-1].astype(jnp.bfloat16))


def test_kernels_refuse_it_without_printing_its_arrays() -> None:
    reason = "it supports no score bias, and this is BucketBias. Leave"
    refused = pytest.raises(ValueError, match=reason)
    call = aligned_call(Causal(), 2, 128, is_packed=True) | {"score_bias": bias_of("table")}
    with interpreted("tpu"), prefer(attention="splash"), refused:
        attention(*arrays(2, 128, 128, 4, 2, 16), **call)


@pytest.mark.parametrize(
    ("bias", "found"),
    [
        (BucketBias(jnp.zeros((BUCKETS, HEADS), jnp.int32)), "int32"),
        (type("Unregistered", (Slope,), {}, static=False)(), "Unregistered"),
    ],
    ids=["integers", "no pytree"],
)
def test_a_bias_that_is_no_pytree_of_floats(bias: ScoreBias, found: str) -> None:
    with pytest.raises(ValueError, match=f"expected a score bias that is a pytree.*{found}"):
        attention(
            *arrays(2, 16, 16, HEADS, KV_HEADS, 8),
            **aligned_call(Causal(), 2, 16, is_packed=False),
            score_bias=bias,
        )
