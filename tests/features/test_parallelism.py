"""Features of parallelism: the same numbers, with more axes sharded."""

from __future__ import annotations

import pytest

from tests.parallel.steps import assert_same, program_and_batch, train

MESHES = [{"fsdp": 4, "model": 2}, {"data": 2, "fsdp": 1, "sequence": 2, "model": 2}]


@pytest.mark.parametrize("mesh", MESHES)
def test_a_sharded_residual_stream_is_the_same(mesh: dict[str, int]) -> None:
    split = train("tiny-lm", mesh, modifiers=("sequence-parallel",))
    assert_same(split, train("tiny-lm", {"fsdp": 1}))


@pytest.mark.parametrize("mesh", MESHES)
def test_only_the_residual_stream_is_sharded_further(mesh: dict[str, int]) -> None:
    program, _ = program_and_batch("tiny-lm", mesh, modifiers=("sequence-parallel",))
    stream = program.placement.rules.mesh_axes(
        ("batch", "residual_sequence", "embed"), program.placement.mesh
    )
    assert stream[1] == (("sequence", "model") if "sequence" in mesh else ("model",))
    heads = ("batch", "sequence", "heads", None)
    plain, _ = program_and_batch("tiny-lm", mesh)
    assert program.placement.sharding(heads).spec == plain.placement.sharding(heads).spec
