"""Parsing HLO text: trip counts of loops, FLOPs of matmuls."""

# ruff: noqa: E501  # as a compiler writes them

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import pytest

from dovetail.plan.hlo import HloArray, HloProgram, arrays
from dovetail.plan.hlo_cost import instruction_cost


def text_of(function: Any, *shapes: Any) -> HloProgram:
    structs = [jax.ShapeDtypeStruct(shape, jnp.float32) for shape in shapes]
    return HloProgram(jax.jit(function).lower(*structs).compile().as_text())


def flops(program: HloProgram) -> float:
    return sum(
        runs * instruction_cost(program, program.computations[name], each).flops
        for name, runs in program.runs().items()
        for each in program.computations[name].instructions
    )


def test_flops_of_a_matmul() -> None:
    assert flops(text_of(jnp.matmul, (64, 128), (128, 32))) == 2 * 64 * 128 * 32


def test_flops_of_a_batched_matmul() -> None:
    assert flops(text_of(jnp.matmul, (8, 64, 128), (8, 128, 32))) == 8 * 2 * 64 * 128 * 32


def test_trip_counts_of_nested_loops_multiply() -> None:
    def twice_nested(x: jax.HloArray, weight: jax.HloArray) -> jax.HloArray:
        def inner(_: Any, x: jax.HloArray) -> jax.HloArray:
            return jnp.tanh(x @ weight)

        def outer(_: Any, x: jax.HloArray) -> jax.HloArray:
            return jax.lax.fori_loop(0, 3, inner, x) + 1

        return jax.lax.fori_loop(0, 5, outer, x)

    assert flops(text_of(twice_nested, (16, 16), (16, 16))) == 15 * 2 * 16**3


# How libtpu 0.0.42 writes things, shortened: a loop whose condition holds its number of trips, a
# kernel whose attributes have lines of their own, memory near to the chip, other threads.
TPU = """HloModule jit_step

%condition.1 (p.1: (s32[], bf16[4,64])) -> pred[] {
  %constant.1 = s32[]{:T(128)} constant(7)
  %p.1 = (s32[]{:T(128)}, bf16[4,64]{1,0:T(8,128)(2,1)}) parameter(0)
  %n.1 = s32[]{:T(128)} get-tuple-element(%p.1), index=0
  ROOT %lt.1 = pred[]{:T(512)} compare(%n.1, %constant.1), direction=LT
}

%fused.1 (a.1: bf16[4,64], w.1: bf16[8,64,64], i.1: s32[]) -> bf16[4,64] {
  %a.1 = bf16[4,64]{1,0:T(8,128)(2,1)} parameter(0)
  %w.1 = bf16[8,64,64]{2,1,0:T(8,128)(2,1)} parameter(1)
  %i.1 = s32[]{:T(128)} parameter(2)
  %c.1 = s32[]{:T(128)} constant(0)
  %slice.1 = bf16[1,64,64]{2,1,0} dynamic-slice(%w.1, %i.1, %c.1, %c.1), dynamic_slice_sizes={1,64,64}
  %flat.1 = bf16[64,64]{1,0} bitcast(%slice.1)
  ROOT %conv.1 = bf16[4,64]{1,0:T(8,128)(2,1)} convolution(%a.1, %flat.1), dim_labels=bf_io->bf
}

%body.1 (p.2: (s32[], bf16[4,64])) -> (s32[], bf16[4,64]) {
  %p.2 = (s32[]{:T(128)}, bf16[4,64]{1,0:T(8,128)(2,1)}) parameter(0)
  %n.2 = s32[]{:T(128)} get-tuple-element(%p.2), index=0
  %x.2 = bf16[4,64]{1,0:T(8,128)(2,1)} get-tuple-element(%p.2), index=1
  %near.2 = bf16[8,64,64]{2,1,0:T(8,128)(2,1)} constant({...})
  %one.2 = s32[]{:T(128)} constant(1)
  %next.2 = s32[]{:T(128)} add(%n.2, %one.2)
  %fusion.2 = bf16[4,64]{1,0:T(8,128)(2,1)} fusion(%x.2, %near.2, %n.2), kind=kOutput, calls=%fused.1
  %kernel.2 = bf16[4,64]{1,0:T(8,128)(2,1)S(1)} custom-call(%fusion.2), custom_call_target="tpu_custom_call", frontend_attributes={kernel_metadata={
"xprof_metadata":"{}"
}}, metadata={op_name="jit(step)/kernel"}
  ROOT %result.2 = (s32[]{:T(128)}, bf16[4,64]{1,0:T(8,128)(2,1)}) tuple(%next.2, %kernel.2)
}

%elsewhere.1 (p.3: f32[4]) -> f32[4] {
  ROOT %p.3 = f32[4]{0:T(128)} parameter(0)
}, execution_thread="sparsecore"

ENTRY %main.1 (x.4: bf16[4,64]) -> bf16[4,64] {
  %x.4 = bf16[4,64]{1,0:T(8,128)(2,1)} parameter(0)
  %zero.4 = s32[]{:T(128)} constant(0)
  %start.4 = (s32[]{:T(128)}, bf16[4,64]{1,0:T(8,128)(2,1)}) tuple(%zero.4, %x.4)
  %while.4 = (s32[]{:T(128)}, bf16[4,64]{1,0:T(8,128)(2,1)}) while(%start.4), condition=%condition.1, body=%body.1
  ROOT %out.4 = bf16[4,64]{1,0:T(8,128)(2,1)} get-tuple-element(%while.4), index=1
}
"""


@pytest.fixture(scope="module")
def tpu() -> HloProgram:
    return HloProgram(TPU)


def test_a_tpu_loop_has_its_trips_in_its_condition(tpu: HloProgram) -> None:
    assert tpu.entry == "%main.1"
    assert tpu.runs() == {"%main.1": 1.0, "%body.1": 7.0}
    assert set(tpu.computations) == {
        "%condition.1",
        "%fused.1",
        "%body.1",
        "%elsewhere.1",
        "%main.1",
    }


def test_a_fusion_reads_only_the_slice_that_it_uses(tpu: HloProgram) -> None:
    body = tpu.computations["%body.1"]
    work = instruction_cost(tpu, body, body.by_name["%fusion.2"])
    rows, matrix = 4 * 64 * 2, 64 * 64 * 2
    assert work.flops == 2 * 4 * 64 * 64
    # The number of the layer is four bytes more.
    assert work.bytes == pytest.approx(rows + matrix + rows, abs=8)


def test_a_kernel_with_metadata_over_several_lines(tpu: HloProgram) -> None:
    kernel = tpu.computations["%body.1"].by_name["%kernel.2"]
    assert kernel.is_kernel
    assert kernel.source == "jit(step)/kernel"
    assert kernel.results == (HloArray("bf16", (4, 64), space=1),)


def test_types_have_bytes() -> None:
    found = arrays("(f32[2,3]{1,0}, bf16[4]{0:T(128)S(1)}, pred[8], s8[], f8e4m3fn[16])")
    assert [array.bytes for array in found] == [24, 8, 8, 1, 16]
    assert [array.space for array in found] == [0, 1, 0, 0, 0]
