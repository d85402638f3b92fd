"""Grouped matmul for TPUs and GPUs: kernels in all three matmuls, rows sharded over all devices."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import pytest

from dovetail.kernels import choices, clear_choices
from dovetail.kernels.grouped_matmul import grouped_matmul
from tests.compile.programs import (
    compiled,
    custom_calls,
    gpus,
    needs_gpu_compiler,
    needs_tpu_compiler,
    tpus,
)

ROWS, GROUPS, IN, OUT = 4096, 8, 384, 640


def gradients(x: Any, weight: Any, sizes: Any) -> Any:
    def loss(x: Any, weight: Any) -> Any:
        return jnp.sin(grouped_matmul(x, weight, sizes).astype(jnp.float32)).sum()

    return jax.grad(loss, (0, 1))(x, weight)


def arrays_of(dtype: str) -> tuple[Any, ...]:
    return (
        ((ROWS, IN), dtype, ("batch", None)),
        ((GROUPS, IN, OUT), dtype, ("expert", "embed", "mlp")),
        ((GROUPS,), "int32", (None,)),
    )


@needs_tpu_compiler
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("chip", ["v5e:2x4", "v5p:2x2x2", "v6e:2x4", "tpu7x:2x2x1"])
def test_megablox_on_tpus(chip: str, dtype: str) -> None:
    clear_choices()
    program = compiled(gradients, tpus(chip), *arrays_of(dtype))
    assert custom_calls(program)["tpu_custom_call"] == 3, "forward, dx, dw"
    assert choices() == ["grouped_matmul: megablox (tpu)"]
    # The work of N rows, once for each matmul: nothing is done for every group.
    assert program.cost_analysis()["flops"] < 1.1 * 3 * 2 * ROWS * IN * OUT


@needs_tpu_compiler
def test_rows_are_sharded_over_all_tpus() -> None:
    placement = tpus("v5e:2x4", data=2, fsdp=2, model=2)
    program = compiled(gradients, placement, *arrays_of("bfloat16"))
    assert custom_calls(program)["tpu_custom_call"] == 3
    assert program.cost_analysis()["flops"] < 1.2 * 3 * 2 * ROWS * IN * OUT / 8


@needs_gpu_compiler
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("chip", ["a100-80gb", "h100", "b200", "gb200"])
def test_triton_on_gpus(chip: str, dtype: str) -> None:
    clear_choices()
    program = compiled(gradients, gpus(chip), *arrays_of(dtype))
    assert custom_calls(program)["__gpu$xla.gpu.triton"] == 3, "forward, dx, dw"
    assert choices() == ["grouped_matmul: triton (gpu)"]
    # XLA itself multiplies nothing, and no array has every row for every group.
    assert " dot(" not in program.as_text()
    assert f"[{GROUPS},{ROWS}" not in program.as_text()


@needs_gpu_compiler
def test_rows_are_sharded_over_all_gpus() -> None:
    placement = gpus("h100", data=2, fsdp=2, model=2)
    program = compiled(gradients, placement, *arrays_of("bfloat16"))
    assert custom_calls(program)["__gpu$xla.gpu.triton"] == 3
    assert f"bf16[{ROWS // 8},{OUT}]" in program.as_text()
