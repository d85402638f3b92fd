"""Mixtures of parallelisms on slices that are not attached: their collectives, counted.

The tables say which collectives a step has, along which mesh axes, for arrays of more than a few
thousand numbers. Each is compiled with the least effort, which takes half of the time: the
collectives are the same, but asynchronous ones stay as they are.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from typing import Any, NamedTuple

import pytest

from dovetail.learner import GPipe, OneForwardOneBackward
from dovetail.targets import gpu_topology, tpu_topology
from tests.compile.mixtures import (
    BATCH,
    EXPERTS,
    HEAD,
    HEADS,
    HIDDEN,
    LAYERS,
    SEQUENCE,
    VOCABULARY,
    WIDTH,
    Mixture,
)
from tests.compile.programs import (
    Collective,
    custom_calls,
    needs_gpu_compiler,
    needs_tpu_compiler,
    program_collectives,
)

LEAST_EFFORT = {"exec_time_optimization_effort": -1.0}
# Norms, counts and metrics are smaller; every matrix and every activation is larger.
SMALL = 4096
# The largest matrices of one layer, of which there are two; keys and values, which have half of the
# heads; and three of the feed-forward. With experts a device has two of those.
LAYER = WIDTH * HEADS * HEAD
HALF = LAYER // 2
INNER = WIDTH * HIDDEN
MOST_OF_A_LAYER = 2 * LAYER + 2 * HALF + 2 * 3 * INNER
TABLE = WIDTH * VOCABULARY
MOE = (f"moe:num_experts={EXPERTS}",)
ONE_BY_ONE = OneForwardOneBackward.Config(microbatches=8)
INTERLEAVED = OneForwardOneBackward.Config(microbatches=8, repeats=2)

Expected = set[tuple[str, str]]

# Each layer's parameters are all-gathered in the loop, and its gradients reduce-scattered.
FSDP: Expected = {("all-gather", "fsdp"), ("reduce-scatter", "fsdp")}
# On TPUs a shard of fewer than 256 columns in bfloat16 (128 in float32) is sliced from an
# all-reduce: here the table's.
FSDP_ON_TPUS = FSDP | {("all-reduce", "fsdp")}
# Where `model` shards matmuls, XLA splits the reductions around them, to overlap both.
IN_PARTS: Expected = {("collective-permute", "fsdp")}

# Stages send activations on; gradients of embedding and head are all-reduced over them at the end.
PIPELINE: Expected = {
    ("collective-permute", "pipeline"),
    ("all-reduce", "pipeline"),
    ("all-reduce", "data"),
    ("all-reduce", "model"),
}

CUBE: dict[str, tuple[Mixture, Expected]] = {
    # Gradients alone.
    "data": (Mixture({"data": 64}), {("all-reduce", "data")}),
    # Over a whole torus XLA gathers by an all-reduce of shards that are zero elsewhere.
    "fsdp": (Mixture({"fsdp": 64}), {("all-reduce", "fsdp")}),
    # Over data only the gradient shards of a device are all-reduced.
    "data-fsdp": (Mixture({"data": 4, "fsdp": 16}), {*FSDP_ON_TPUS, ("all-reduce", "data")}),
    # Activations are all-reduced after attention and after the feed-forward.
    "fsdp-model": (
        Mixture({"fsdp": 16, "model": 4}),
        {*FSDP_ON_TPUS, *IN_PARTS, ("all-reduce", "model")},
    ),
    # The same as a scatter and a gather, with the stream split in between. The loss adds up.
    "stream": (
        Mixture({"fsdp": 16, "model": 4}, ("sequence-parallel",)),
        {
            *FSDP_ON_TPUS,
            *IN_PARTS,
            ("all-gather", "model"),
            ("reduce-scatter", "model"),
            ("all-reduce", "model"),
        },
    ),
    "ulysses": (
        Mixture({"data": 4, "fsdp": 4, "sequence": 4}),
        {*FSDP_ON_TPUS, ("all-reduce", "data sequence"), ("all-to-all", "sequence")},
    ),
    "ring": (
        Mixture({"data": 4, "fsdp": 4, "sequence": 4}, prefer={"attention": "ring"}, sequence=1024),
        {*FSDP_ON_TPUS, ("all-reduce", "data sequence"), ("collective-permute", "sequence")},
    ),
    # Tokens go to their experts and back; the rest of a layer is as with data.
    "experts": (
        Mixture({"fsdp": 8, "expert": 8}, MOE),
        {*FSDP_ON_TPUS, ("all-reduce", "expert"), ("ragged-all-to-all", "expert")},
    ),
    # All experts everywhere: of their gradients, too, only parts are added up over data.
    "experts-everywhere": (
        Mixture({"data": 4, "fsdp": 16}, MOE),
        {*FSDP_ON_TPUS, ("all-reduce", "data")},
    ),
    # Rows are cut into runs over `model`, as for latent below.
    "experts-model": (
        Mixture({"fsdp": 4, "expert": 4, "model": 4}, MOE),
        {
            *FSDP_ON_TPUS,
            ("all-reduce", "expert"),
            ("ragged-all-to-all", "expert"),
            ("all-reduce", "model"),
            ("all-gather", "model"),
            ("reduce-scatter", "model"),
            ("all-to-all", "model"),
        },
    ),
    "pipeline": (Mixture({"pipeline": 4, "data": 4, "model": 4}, gradients=ONE_BY_ONE), PIPELINE),
    "pipeline-sequence": (
        Mixture({"pipeline": 4, "data": 4, "sequence": 4}, gradients=ONE_BY_ONE),
        {
            ("collective-permute", "pipeline"),
            ("all-reduce", "pipeline"),
            ("all-reduce", "data sequence"),
            ("all-to-all", "sequence"),
        },
    ),
    "gpipe": (
        Mixture({"pipeline": 4, "data": 4, "model": 4}, gradients=GPipe.Config(microbatches=8)),
        PIPELINE,
    ),
    # Stacks lie stage by stage, and are wanted round by round: see RELAID.
    "interleaved": (
        Mixture({"pipeline": 2, "data": 8, "model": 4}, gradients=INTERLEAVED),
        {*PIPELINE, ("all-to-all", "pipeline")},
    ),
    # Recurrent layers, and one of attention.
    "hybrid": (
        Mixture({"fsdp": 16, "model": 4}, tiny="tiny-hybrid"),
        {*FSDP, ("all-reduce", "model")},
    ),
    # With experts, whose rows are cut into runs: each device of `model` has whole experts for its
    # own, so they are gathered along it, too, layer by layer, and rows change places with columns.
    "latent": (
        Mixture({"fsdp": 16, "model": 4}, tiny="deepseek-v3"),
        {
            *FSDP_ON_TPUS,
            ("all-reduce", "model"),
            ("all-gather", "model"),
            ("reduce-scatter", "model"),
            ("all-to-all", "model"),
        },
    ),
    "data-fsdp-model": (
        Mixture({"data": 4, "fsdp": 4, "model": 4}),
        {*FSDP_ON_TPUS, ("all-reduce", "model"), ("all-reduce", "data")},
    ),
    "pipeline-experts": (
        Mixture(
            {"pipeline": 4, "fsdp": 2, "expert": 8},
            MOE,
            gradients=OneForwardOneBackward.Config(microbatches=4),
        ),
        {
            *FSDP_ON_TPUS,
            ("collective-permute", "pipeline"),
            ("all-reduce", "pipeline"),
            ("all-reduce", "expert"),
            ("ragged-all-to-all", "expert"),
            ("all-gather", "fsdp expert"),  # which experts each token goes to: whole numbers
        },
    ),
}


# How often arrays of a size go along an axis in the loops over layers. The forward pass gathers
# every matrix once. The backward pass gathers those of the feed-forward once, and those of
# attention twice: XLA wants them in one layout to compute again and in another for the gradients.
# Each gradient is scattered once, and its part added up over data once.
COUNTS: dict[str, dict[tuple[str, str], Counter[int]]] = {
    "data-fsdp": {
        ("all-gather", "fsdp"): Counter({LAYER: 2 * 3, HALF: 2 * 3, INNER: 3 * 2}),
        ("reduce-scatter", "fsdp"): Counter({LAYER: 2, HALF: 2, INNER: 3}),
        ("all-reduce", "data"): Counter({LAYER // 16: 2, HALF // 16: 2, INNER // 16: 3}),
    },
    # What is not gathered here goes round in parts. Activations are added up twice forwards, and
    # three times backwards, where those of attention are computed again.
    "fsdp-model": {
        ("all-gather", "fsdp"): Counter({LAYER // 4: 3, HALF // 4: 2, INNER // 4: 3}),
        ("all-reduce", "model"): Counter({BATCH // 16 * SEQUENCE * WIDTH: 5}),
    },
}

# With two repeats on two stages a device holds half of the layers that it computes. It receives the
# others at the beginning of a step, and sends their gradients at its end: three layers in float32.
RELAID = Counter(
    {
        2 * 3 * LAYER // 4: 2 * 2,
        2 * 3 * HALF // 4: 2 * 2,
        2 * 3 * INNER // 4: 3 * 2,
    }
)


class Crossing(NamedTuple):
    """What crosses slices: shards, since gradients are reduce-scattered within each slice first.

    Attributes:
        in_loops: the size of the largest array in loops.
        summed: the largest all-reduce outside of loops: a shard of a table.
        kinds: the kinds of collectives.
    """

    in_loops: int
    summed: int
    kinds: frozenset[str] = frozenset({"all-reduce"})


# What crosses is laid out in tiles of 128 columns, padded where a shard has fewer.
COLUMNS = 128
# A device has a shard of the table of so many columns, and all of its rows.
NARROW_TABLE = VOCABULARY * COLUMNS

SLICES: dict[str, tuple[Mixture, Crossing]] = {
    "data-fsdp": (Mixture({"data": 2, "fsdp": 16}), Crossing(LAYER // 16, NARROW_TABLE)),
    "ulysses": (
        Mixture({"data": 2, "fsdp": 4, "sequence": 4}),
        Crossing(LAYER // 16, NARROW_TABLE // 4),
    ),
    "ring": (
        Mixture({"data": 2, "fsdp": 4, "sequence": 4}, prefer={"attention": "ring"}, sequence=1024),
        Crossing(LAYER // 16, NARROW_TABLE // 4),
    ),
    "experts": (
        Mixture({"data": 2, "fsdp": 2, "expert": 8}, MOE),
        Crossing(EXPERTS // 8 * INNER // 2, TABLE // 16),
    ),
    # Its eight experts are sharded over all devices of a slice; 160 columns make two tiles.
    "latent": (
        Mixture({"data": 2, "fsdp": 4, "model": 4}, tiny="deepseek-v3"),
        Crossing(8 * WIDTH // 4 * 2 * COLUMNS, NARROW_TABLE // 4),
    ),
    # The last norm is fused with a shard of the table.
    "pipeline-data": (
        Mixture({"pipeline": 2, "data": 4, "model": 4}, gradients=ONE_BY_ONE),
        Crossing(LAYER // 8, TABLE // 8 + SMALL),
    ),
    # Stages in different slices: activations cross, and at the end what all stages share.
    "pipeline": (
        Mixture({"pipeline": 2, "fsdp": 4, "model": 4}, gradients=ONE_BY_ONE),
        Crossing(
            BATCH // (8 * 4) * SEQUENCE * WIDTH,
            TABLE // 16 + SMALL,
            frozenset({"one-to-one", "all-reduce"}),
        ),
    ),
}

# Where gradients in loops are all-reduced over fsdp, and each device keeps a shard.
ALL_REDUCED = {
    "CUBE fsdp",  # over a whole torus XLA scatters so, too
    "SLICES data-fsdp",  # each slice is one
}

# Hosts of eight GPUs, which a network joins.
HOSTS: dict[str, tuple[Mixture, Expected]] = {
    "data-fsdp": (Mixture({"data": 2, "fsdp": 8}), {*FSDP, ("all-reduce", "data")}),
    "fsdp-model": (Mixture({"fsdp": 2, "model": 8}), {*FSDP, ("all-reduce", "model")}),
    "experts": (
        Mixture({"data": 2, "expert": 8}, MOE),
        # Experts are sharded over the mesh; the rest of a layer is replicated.
        {("all-reduce", "data"), ("all-reduce", "data expert"), ("ragged-all-to-all", "expert")},
    ),
}


def compiled(
    mixture: Mixture, devices: Sequence[Any], options: Any
) -> tuple[Any, list[Collective]]:
    program = mixture.program(devices)
    executable = program.lowered.compile(options)
    return executable, program_collectives(executable, program.placement.device_mesh)


def large(found: list[Collective]) -> Expected:
    return {(each.kind, " ".join(each.axes)) for each in found if each.largest > SMALL}


def in_loops(found: list[Collective], kind: str, axes: str) -> Counter[int]:
    """Returns how many arrays of each size a kind of collective has in loops along some axes."""
    return Counter(
        math.prod(shape)
        for each in found
        if (each.kind, " ".join(each.axes), each.in_loop) == (kind, axes, True)
        for shape in each.shapes
        if math.prod(shape) > SMALL
    )


def is_stack(shape: tuple[int, ...], in_loop: bool) -> bool:
    """Returns whether an array stacks the parameters of several layers: a size has their factor."""
    if is_joined(shape):
        return math.prod(shape) > (MOST_OF_A_LAYER if in_loop else 2 * TABLE + SMALL)
    return math.prod(shape) > SMALL and any(size % 3 == 0 for size in shape)


def is_joined(shape: tuple[int, ...]) -> bool:
    """Returns whether XLA has concatenated and padded several arrays for one collective.

    For GPUs they are one row then, and over slices of TPUs tiles of 8 x 128.
    """
    return len(shape) == 1 or (len(shape) == 3 and shape[1:] == (8, 128))


def check_sizes(found: list[Collective], mixture: Mixture) -> None:
    """No collective has a stack of parameters, or activations of all devices."""
    mesh = {"sequence": 1, "data": 1, "fsdp": 1, "expert": 1} | mixture.mesh
    rows = BATCH // math.prod(mesh[axis] for axis in ("data", "fsdp", "expert"))
    activation = rows * mixture.sequence // mesh["sequence"] * max(WIDTH, HEADS * HEAD)
    experts = EXPERTS // mesh["expert"] * INNER if mixture.modifiers == MOE else 0
    for each in found:
        # Along `model` alone there are activations, which XLA may concatenate.
        stacks = [shape for shape in each.shapes if is_stack(shape, each.in_loop)]
        assert not stacks or (each.axes == ("model",) and all(map(is_joined, stacks))), each
        if each.kind != "ragged-all-to-all":  # its buffers have the capacity of the worst case
            assert each.largest <= max(LAYER, TABLE, experts, activation), each


def check_reduce_scattered(found: list[Collective]) -> None:
    """In loops, gradients are reduce-scattered over fsdp, never all-reduced.

    On TPUs a shard of fewer than 256 columns in bfloat16 is sliced from an all-reduce: here the
    shards of matrices that end in the width.
    """
    for each in found:
        if each.kind == "all-reduce" and "fsdp" in each.axes and each.in_loop:
            wide = [shape for shape in each.shapes if shape[-1:] != (WIDTH,)]
            # XLA concatenates what is too small to scatter: less than the smallest matrix shard.
            limits = [INNER // 4 if is_joined(shape) else SMALL + 1 for shape in wide]
            assert all(math.prod(s) < most for s, most in zip(wide, limits, strict=True)), each


def check_crossing(found: list[Collective], crossing: Crossing) -> None:
    """Shards of layers cross slices in loops, and shards of tables outside of them."""
    crossed = [each for each in found if not each.axes]
    assert {each.kind for each in crossed} == crossing.kinds
    assert max(each.largest for each in crossed if each.in_loop) == crossing.in_loops
    for each in crossed:
        if not each.in_loop:
            is_sum = each.kind == "all-reduce"
            assert each.largest <= (crossing.summed if is_sum else crossing.in_loops), each


def check_kernels(executable: Any, *kernels: str) -> None:
    """Attention kernels run on every mesh: forward, backward, and in the recompute."""
    found = custom_calls(executable)
    assert all(found[kernel] for kernel in kernels)
    assert sum(found[kernel] for kernel in kernels) >= 3


def check_per_layer_gathers(found: list[Collective]) -> None:
    """Layers are gathered in the loop; over data only gradient shards are all-reduced."""
    assert {each.in_loop for each in found if each.largest == LAYER} == {True}
    over_data = [each.largest for each in found if each.axes == ("data",)]
    assert max(over_data) == LAYER // 16
    outside = {t.largest for t in found if t.kind == "all-gather" and not t.in_loop}
    assert outside == {TABLE}, "the two tables"


@pytest.mark.parametrize("table", ["CUBE", "SLICES", "HOSTS"])
def test_a_gathered_stack_would_be_found_in_every_mixture(table: str) -> None:
    for mixture, *_ in {"CUBE": CUBE, "SLICES": SLICES, "HOSTS": HOSTS}[table].values():
        layers, split = LAYERS // mixture.mesh.get("pipeline", 1), mixture.mesh.get("model", 1)
        for shape in ((layers, WIDTH, HIDDEN // split), (layers * WIDTH, HEADS * HEAD // split)):
            with pytest.raises(AssertionError):
                check_sizes([Collective("all-gather", ("fsdp",), (shape,), False)], mixture)
            check_sizes([Collective("all-gather", ("fsdp",), ((1, *shape[1:]),), True)], mixture)


def test_an_all_reduced_gradient_would_be_found() -> None:
    for shape in ((WIDTH, HEADS * HEAD), (EXPERTS, WIDTH, HIDDEN), (1, 2, WIDTH, HIDDEN // 4)):
        for axes in (("fsdp",), ("data", "fsdp"), ("fsdp", "expert")):
            with pytest.raises(AssertionError):
                check_reduce_scattered([Collective("all-reduce", axes, (shape,), True)])
            check_reduce_scattered([Collective("reduce-scatter", axes, (shape,), True)])
        check_reduce_scattered([Collective("all-reduce", ("data",), (shape,), True)])


@pytest.mark.parametrize("name", SLICES)
def test_a_table_or_stack_that_crosses_would_be_found(name: str) -> None:
    mixture, crossing = SLICES[name]
    fine = [Collective(kind, (), ((crossing.in_loops,),), True) for kind in crossing.kinds]
    check_crossing([*fine, Collective("all-reduce", (), ((crossing.summed,),), False)], crossing)
    devices = math.prod(mixture.mesh.values()) // 2
    for size in (TABLE, LAYERS * LAYER // devices):
        with pytest.raises(AssertionError):
            check_crossing([*fine, Collective("all-reduce", (), ((size,),), False)], crossing)
    with pytest.raises(AssertionError):
        check_crossing([*fine, Collective("all-reduce", (), ((LAYERS * LAYER,),), True)], crossing)


@needs_tpu_compiler
@pytest.mark.parametrize("name", CUBE)
def test_on_a_cube_of_tpus(name: str) -> None:
    mixture, expected = CUBE[name]
    executable, found = compiled(mixture, tpu_topology("v5p:4x4x4"), LEAST_EFFORT)
    assert large(found) == expected
    if name == "interleaved":
        relaid = [each for each in found if each.kind == "all-to-all"]
        assert Counter(each.largest for each in relaid if each.largest > SMALL) == RELAID
        found = [each for each in found if each not in relaid]
    check_sizes(found, mixture)
    if f"CUBE {name}" not in ALL_REDUCED:
        check_reduce_scattered(found)
    for (kind, axes), counts in COUNTS.get(name, {}).items():
        assert in_loops(found, kind, axes) == counts, (kind, axes)
    if name == "data-fsdp":
        check_per_layer_gathers(found)
    check_kernels(executable, "tpu_custom_call")


@needs_tpu_compiler
@pytest.mark.parametrize("name", SLICES)
def test_over_two_slices_of_tpus(name: str) -> None:
    mixture, crossing = SLICES[name]
    devices = tpu_topology("v5e:4x4", slices=2)
    executable, found = compiled(mixture, devices, LEAST_EFFORT)
    check_crossing(found, crossing)
    inside = [each for each in found if each.axes]
    check_sizes(inside, mixture)
    if f"SLICES {name}" not in ALL_REDUCED:
        check_reduce_scattered(inside)
    check_kernels(executable, "tpu_custom_call")


@needs_gpu_compiler
@pytest.mark.parametrize("name", HOSTS)
def test_over_two_hosts_of_gpus(name: str) -> None:
    mixture, expected = HOSTS[name]
    executable, found = compiled(mixture, gpu_topology("nvidia-h100", hosts=2), None)
    assert large(found) == expected
    check_sizes(found, mixture)
    check_reduce_scattered(found)
    check_kernels(executable, "mosaic_gpu_v2", "__gpu$xla.gpu.triton")
