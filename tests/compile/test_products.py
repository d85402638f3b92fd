"""Matmuls in eight bits: the compiler multiplies the small types natively."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import pytest

from dovetail.layers.linear.quantized import Fp8Matmul, Int8Matmul
from tests.compile.programs import (
    compiled,
    gpus,
    matmul_types,
    needs_gpu_compiler,
    needs_tpu_compiler,
    tpus,
)

ARRAYS = (((4, 256, 512), "bfloat16", (None,) * 3), ((512, 1024), "bfloat16", (None,) * 2))


def gradients_of(product: Any) -> Any:
    """Returns a function from rows and weight to their gradients."""
    multiply = product.Config().build()
    return jax.grad(lambda x, w: jnp.sin(multiply(x, w).astype(jnp.float32)).sum(), (0, 1))


@needs_tpu_compiler
@pytest.mark.parametrize("chip", ["v5e:2x2", "v6e:2x2"])
def test_int8_on_tpus(chip: str) -> None:
    types = matmul_types(compiled(gradients_of(Int8Matmul), tpus(chip), *ARRAYS))
    # The gradient of the weight is in the wider type on purpose.
    assert types == {("s8", "s8", "s32"), ("bf16", "bf16", "f32")}


@needs_tpu_compiler
def test_fp8_on_the_tpu_that_has_it() -> None:
    types = matmul_types(compiled(gradients_of(Fp8Matmul), tpus("tpu7x:2x2x1"), *ARRAYS))
    assert types == FP8


@needs_gpu_compiler
def test_int8_on_gpus() -> None:
    types = matmul_types(compiled(gradients_of(Int8Matmul), gpus("h100"), *ARRAYS))
    assert ("s8", "s8", "s32") in types


@needs_gpu_compiler
def test_fp8_on_the_gpu_that_has_it() -> None:
    types = matmul_types(compiled(gradients_of(Fp8Matmul), gpus("h100"), *ARRAYS))
    assert types == FP8


FP8 = {
    ("f8e4m3fn", "f8e4m3fn", "f32"),
    ("f8e5m2", "f8e4m3fn", "f32"),
    ("f8e4m3fn", "f8e5m2", "f32"),
}
