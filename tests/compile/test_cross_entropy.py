"""Cross-entropy for TPUs: collectives where vocabulary, batch and sequence are sharded."""

from __future__ import annotations

from typing import Any

import jax
import pytest

from dovetail.kernels.cross_entropy import cross_entropy
from tests.compile.programs import compiled, needs_tpu_compiler, program_collectives, tpus

BATCH, SEQUENCE, WIDTH, VOCABULARY = 16, 2048, 256, 6144


def gradients(x: Any, weight: Any, targets: Any, weights: Any) -> Any:
    def loss(x: Any, weight: Any) -> Any:
        return cross_entropy(x, weight, targets, weights).loss_sum

    return jax.value_and_grad(loss, (0, 1))(x, weight)


@needs_tpu_compiler
@pytest.mark.parametrize(
    "sizes", [{"fsdp": 4, "model": 2}, {"fsdp": 2, "sequence": 2, "model": 2}], ids=str
)
def test_the_weight_is_gathered_once_and_only_along_embed(sizes: dict[str, int]) -> None:
    placement = tpus("v5e:2x4", **sizes)
    program = compiled(
        gradients,
        placement,
        ((BATCH, SEQUENCE, WIDTH), "bfloat16", ("batch", "sequence", None)),
        ((VOCABULARY, WIDTH), "bfloat16", ("vocab", "embed")),
        ((BATCH, SEQUENCE), "int32", ("batch", "sequence")),
        ((BATCH, SEQUENCE), "float32", ("batch", "sequence")),
    )
    moved = program_collectives(program, placement.device_mesh)
    shapes = {True: set[int](), False: set[int]()}
    for each in moved:
        shapes[each.in_loop].update(size for shape in each.shapes for size in shape)
    assert moved, "the reductions at least"
    assert VOCABULARY not in shapes[True] | shapes[False], "the vocabulary stays sharded"
    # In the loop: statistics of tokens, and the partial sums of dx over vocabulary shards.
    in_loop = {one.kind for one in moved if one.in_loop}
    assert in_loop <= {"all-reduce"}, moved
    assert VOCABULARY // 2 not in shapes[True]
