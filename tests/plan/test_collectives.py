"""Collectives and host copies, parsed from HLO text."""

# ruff: noqa: E501  # as a compiler writes them

from __future__ import annotations

import jax
import pytest

from dovetail.parallel import MeshLayout
from dovetail.plan.collectives import Collective, collectives
from dovetail.plan.hlo import HloProgram
from dovetail.plan.hlo_cost import instruction_cost
from dovetail.plan.roofline import DeviceRates, StepTime, program_time

# An all-reduce of two arrays, as on GPUs; an asynchronous all-gather; a synchronous all-reduce.
PROGRAM = """HloModule jit_step

%sum (a: f32[], b: f32[]) -> f32[] {
  %a = f32[] parameter(0)
  %b = f32[] parameter(1)
  ROOT %add = f32[] add(%a, %b)
}

ENTRY %main (p: f32[1024,4]) -> f32[1024,4] {
  %p = f32[1024,4]{1,0} parameter(0)
  %q = f32[64]{0} parameter(1)
  %all-reduce-start.1 = (f32[1024,4]{1,0}, f32[64]{0}) all-reduce-start(%p, %q), channel_id=1, replica_groups={{0,1,2,3},{4,5,6,7}}, use_global_device_ids=true, to_apply=%sum
  %all-reduce-done.1 = (f32[1024,4]{1,0}, f32[64]{0}) all-reduce-done(%all-reduce-start.1)
  %all-gather-start.1 = (f32[1024,4]{1,0}, f32[2048,4]{1,0}) all-gather-start(%p), channel_id=2, replica_groups=[4,2]<=[2,4]T(1,0), dimensions={0}, use_global_device_ids=true
  %all-gather-done.1 = f32[2048,4]{1,0} all-gather-done(%all-gather-start.1)
  %all-reduce.2 = f32[64]{0} all-reduce(%q), channel_id=3, replica_groups={{0,1,2,3,4,5,6,7}}, use_global_device_ids=true, to_apply=%sum
  %permute = (u32[64]{0}, u32[64]{0}, u32[], u32[]) collective-permute-start(%q), channel_id=4, source_target_pairs={{0,4},{4,0},{1,5},{5,1}}
  %copy-start.1 = (f32[1024,4]{1,0:S(5)}, f32[1024,4]{1,0}, u32[]{:S(2)}) copy-start(%p)
  %copy-done.1 = f32[1024,4]{1,0:S(5)} copy-done(%copy-start.1)
  %index = s32[] constant(3)
  %slice-start.1 = ((f32[1024,4]{1,0:S(5)}, s32[], s32[]), f32[1,4]{1,0}, u32[]{:S(2)}) dynamic-slice-start(%copy-done.1, %index, %index), dynamic_slice_sizes={1,4}
  ROOT %multiply = f32[1024,4]{1,0} multiply(%p, %p)
}
"""


@pytest.fixture(scope="module")
def found() -> list[Collective]:
    mesh = MeshLayout.Config(data=2, fsdp=4).build().mesh(jax.devices()[:8])
    return collectives(HloProgram(PROGRAM), mesh)


def test_collectives_have_mesh_axes_and_unsharded_bytes(found: list[Collective]) -> None:
    assert [(each.kind, each.axes, each.bytes) for each in found] == [
        ("all-reduce", ("fsdp",), 4 * (1024 * 4 + 64)),
        ("all-gather", ("data",), 4 * 2048 * 4),
        ("all-reduce", ("data", "fsdp"), 4 * 64),
        ("collective-permute", ("data",), 4 * 64),
    ]
    assert [each.is_async for each in found] == [True, True, False, True]
    assert not any(each.in_loop or each.is_over_dcn for each in found)


def test_copies_to_the_host_are_counted_by_array_or_slice() -> None:
    program = HloProgram(PROGRAM)
    where = program.computations[program.entry]
    moved = {
        each.name: instruction_cost(program, where, each).host_bytes for each in where.instructions
    }
    assert {name: size for name, size in moved.items() if size} == {
        "%copy-start.1": 4 * 1024 * 4,
        "%slice-start.1": 4 * 4,
    }


def test_asynchronous_collectives_hide_behind_compute(found: list[Collective]) -> None:
    program = HloProgram(PROGRAM)
    to_host = 4 * 1024 * 4 + 4 * 4

    def timing(host_bandwidth: float, second: float) -> StepTime:
        rates = DeviceRates(1.0, 1.0, 1.0, host_bandwidth)
        return program_time(program, found, lambda _: second, rates)

    computed = timing(1e12, 0.0)
    assert computed.memory > 0
    assert (computed.matmul, computed.kernels) == (0, 0)
    quick = timing(to_host, 1.0)
    assert quick.exposed == pytest.approx(1.0), "the synchronous one"
    assert quick.hidden == pytest.approx(3.0 + 1.0), "three collectives, and the host"
    slow = timing(to_host / (2 * computed.memory), 1.0)
    assert slow.hidden == pytest.approx(computed.memory)
    assert slow.exposed == pytest.approx(1.0 + 3.0 + computed.memory)
