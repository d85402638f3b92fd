"""Attention over a sharded sequence: outputs, gradients, and which device does what."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, PartitionSpec

from dovetail.kernels import choices, clear_choices, prefer
from dovetail.kernels.attention import (
    Causal,
    Full,
    Mask,
    Prefix,
    ScoreBias,
    ScoreMap,
    SlidingWindow,
    SoftCap,
    attention,
    attention_op,
)
from dovetail.kernels.attention.context_parallel import xla_chunks
from dovetail.kernels.attention.context_parallel.layouts import (
    ContiguousLayout,
    ZigzagLayout,
    ring_layout,
)
from dovetail.parallel import AxisRules, MeshLayout, Placement, use_placement
from tests.kernels.attention.cases import aligned_call, arrays, record
from tests.kernels.attention.compare import TOLERANCES, assert_close, results, temporaries

LENGTH = 64
MESHES = {"eight": {"sequence": 8}, "mixed": {"data": 2, "sequence": 2, "model": 2}}
MASKS: dict[str, Mask] = {
    "causal": Causal(),
    "window": SlidingWindow(11),
    "wide window": SlidingWindow(40),
    "full": Full(),
    "prefix": Causal() | Prefix(20),
}


def placement_of(**sizes: int) -> Placement:
    layout = MeshLayout.Config(**({"fsdp": 1} | sizes)).build()
    return Placement(layout.mesh(), AxisRules.Config().build())


@dataclass(frozen=True)
class Distance(ScoreBias):
    """A bias that differs by head and position."""

    def __call__(self, heads: jax.Array, queries: jax.Array, keys: jax.Array) -> jax.Array:
        return -0.01 * (heads + 1) * (queries - keys)


@dataclass(frozen=True)
class Sigmoid(ScoreMap):
    """Weights without a softmax."""

    def __call__(self, scores: jax.Array, /) -> jax.Array:
        return jax.nn.sigmoid(scores)


@pytest.mark.parametrize("is_packed", [False, True], ids=["plain", "packed"])
@pytest.mark.parametrize("mask", MASKS.values(), ids=MASKS)
@pytest.mark.parametrize("mesh", MESHES.values(), ids=MESHES)
@pytest.mark.parametrize("name", ["ring", "ulysses"])
def test_it_is_what_one_device_computes(
    name: str, mesh: dict[str, int], mask: Mask, is_packed: bool
) -> None:
    inputs = arrays(2, LENGTH, LENGTH, 16, 2 if name == "ring" else 8, 8)
    call = aligned_call(mask, 2, LENGTH, is_packed)
    sinks = jnp.linspace(-1, 1, 16)
    expected = results("reference", inputs, call, sinks)
    with use_placement(placement_of(**mesh)):
        got = results(name, inputs, call, sinks)
    assert_close(got, expected, TOLERANCES["float32"])


@pytest.mark.parametrize(
    "is_packed", [pytest.param(False, marks=pytest.mark.sweep), True], ids=["plain", "packed"]
)
@pytest.mark.parametrize("mask", MASKS.values(), ids=MASKS)
def test_a_ring_with_several_blocks_per_chunk(
    mask: Mask, is_packed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of 24 tokens a device, in blocks of up to 5: three in each half, or six in a row."""
    monkeypatch.setattr(xla_chunks, "BLOCK", 5)
    assert [xla_chunks.block_size(length) for length in (12, 24)] == [4, 4]
    inputs, call = arrays(2, 192, 192, 4, 2, 8), aligned_call(mask, 2, 192, is_packed)
    sinks = jnp.linspace(-1, 1, 4)
    expected = results("reference", inputs, call, sinks)
    with use_placement(placement_of(sequence=8)):
        got = results("ring", inputs, call, sinks)
    assert_close(got, expected, TOLERANCES["float32"])


@pytest.mark.parametrize(
    ("heads", "mesh"),
    [
        ((16, 2), {"data": 2, "sequence": 4}),
        ((12, 6), {"data": 2, "sequence": 4}),
        ((8, 1), {"sequence": 8}),
        ((16, 4), {"sequence": 4, "model": 2}),
    ],
    ids=str,
)
def test_a_kv_head_goes_to_each_device_that_has_query_heads_of_it(
    heads: tuple[int, int], mesh: dict[str, int]
) -> None:
    inputs = arrays(2, LENGTH, LENGTH, *heads, 8)
    call = aligned_call(Causal(), 2, LENGTH, is_packed=True)
    expected = results("reference", inputs, call)
    with use_placement(placement_of(**mesh)):
        got = results("ulysses", inputs, call)
    assert_close(got, expected, TOLERANCES["float32"])


@pytest.mark.parametrize("extra", ["bias", "activation", "map", "bfloat16", "other width"])
@pytest.mark.parametrize("name", ["ring", "ulysses"])
def test_it_takes_what_the_op_takes(name: str, extra: str) -> None:
    dtype = "bfloat16" if extra == "bfloat16" else "float32"
    inputs = arrays(2, LENGTH, LENGTH, 4, 4, 8, dtype, 12 if extra == "other width" else None)
    call = aligned_call(Causal(), 2, LENGTH, is_packed=True)
    more: dict[str, Any] = {
        "bias": {"score_bias": Distance()},
        "activation": {"score_activation": Sigmoid()},
        "map": {"score_map": SoftCap(2.0)},
    }.get(extra, {})
    if (name, extra) == ("ulysses", "bias"):
        with (
            use_placement(placement_of(data=2, sequence=4)),
            pytest.raises(ValueError, match="depends"),
        ):
            results(name, inputs, call | more)
        return
    expected = results("reference", inputs, call | more)
    with use_placement(placement_of(data=2, sequence=4)):
        got = results(name, inputs, call | more)
    assert_close(got, expected, TOLERANCES[dtype])


def test_heads_decide_which_runs() -> None:
    with use_placement(placement_of(data=2, sequence=4)):
        assert chosen(heads=8, kv_heads=4) == "ulysses"
        assert chosen(heads=8, kv_heads=2) == "ulysses"
        assert chosen(heads=12, kv_heads=6) == "ulysses"
        assert chosen(heads=6, kv_heads=6) == "ring"
        assert chosen(heads=2, kv_heads=1) == "ring"
        assert chosen(heads=8, kv_heads=4, aligned=False) == "reference"
        assert chosen(heads=8, kv_heads=4, batch=3) == "reference"
    with use_placement(placement_of(data=8)):
        assert chosen(heads=8, kv_heads=4, batch=8) == "reference"
    with use_placement(placement_of(data=2, sequence=2, model=2)):
        assert chosen(heads=8, kv_heads=4, score_bias=Distance()) == "ring"


def chosen(heads: int, kv_heads: int, batch: int = 2, **changes: Any) -> str:
    inputs = arrays(batch, LENGTH, LENGTH, heads, kv_heads, 8)
    call = aligned_call(Causal(), batch, LENGTH, is_packed=False) | changes
    return attention_op.choose(record(inputs, call)).name


def test_the_kernel_inside_ulysses_is_recorded_too() -> None:
    clear_choices()
    call = aligned_call(Causal(), 2, LENGTH, is_packed=False)
    with use_placement(placement_of(data=2, sequence=4)):
        jax.eval_shape(lambda *a: attention(*a, **call), *arrays(2, LENGTH, LENGTH, 8, 4, 8))
    assert [line.split(" (")[0] for line in choices()] == [
        "attention: ulysses",
        "attention: reference",
    ]


def test_kernels_refuse_kv_heads_that_are_sharded_differently() -> None:
    """A device with half of the heads and all KV heads would pair them wrongly."""
    rules = AxisRules.Config()
    rules.rules = {**rules.rules, "kv_heads": ()}
    mesh = MeshLayout.Config(fsdp=1, data=2, sequence=2, model=2).build().mesh()
    with use_placement(Placement(mesh, rules.build())):
        assert chosen(heads=8, kv_heads=4) in ("blockwise", "reference")


def test_a_preferred_one_that_cannot_run_says_why() -> None:
    inputs = arrays(2, LENGTH, LENGTH, 2, 2, 8)
    call = aligned_call(Causal(), 2, LENGTH, is_packed=False)
    reason = "2 query heads over 2 KV heads do not divide over 4 devices"
    refused = pytest.raises(ValueError, match=reason)
    with use_placement(placement_of(data=2, sequence=4)), prefer(attention="ulysses"), refused:
        attention(*inputs, **call)


def test_the_work_of_a_causal_ring_is_balanced() -> None:
    layout = ring_layout(Causal(), ("sequence",), 4, 16)
    assert isinstance(layout, ZigzagLayout)
    index = [np.asarray(layout.index(jnp.int32(device))) for device in range(4)]
    assert sorted(np.concatenate(index)) == list(range(64))
    for device in range(4):
        own = worked(layout, index, device, None)
        others = [worked(layout, index, device, other) for other in range(4) if other != device]
        assert [useful / computed for useful, computed in others] == [1.0] * 3, "nothing is masked"
        assert len({computed for _, computed in others}) == 1
        # Of its own three pairs of chunks two are on the diagonal.
        assert own == (8 * 9 // 2 * 2 + 64, 3 * 64)


def worked(layout: ZigzagLayout, index: list[np.ndarray], device: int, other: int | None) -> Any:
    """Returns how many pairs of tokens are allowed, of those that a device computes."""
    there = index[device if other is None else other]
    which = None if other is None else jnp.int32(other)
    useful = computed = 0
    for pair in layout.pairs(jnp.int32(device), which):
        queries = index[device][int(pair.q_start) :][: pair.length]
        keys = there[int(pair.kv_start) :][: pair.length]
        useful += int((keys[None] <= queries[:, None]).sum())
        computed += pair.length**2
    return useful, computed


def test_a_window_goes_as_far_as_it_reaches() -> None:
    assert ring_layout(SlidingWindow(17), ("sequence",), 8, 16).hops == 1
    assert ring_layout(SlidingWindow(18), ("sequence",), 8, 16).hops == 2
    assert ring_layout(SlidingWindow(1), ("sequence",), 8, 16).hops == 0
    assert ring_layout(Full(), ("sequence",), 8, 16).hops == 7
    assert isinstance(ring_layout(Causal(), ("sequence",), 8, 15), ContiguousLayout), (
        "no two halves"
    )


@pytest.mark.parametrize("devices", [2, 3, 8])
def test_zigzag_can_be_undone(devices: int) -> None:
    layout = ZigzagLayout(("ring",), devices, 6)
    mesh = Mesh(np.asarray(jax.devices()[:devices]), ("ring",))
    split = PartitionSpec("ring")

    def both(x: jax.Array) -> Any:
        zigzag = layout.arrange(x, 0)
        return zigzag, layout.restore(zigzag, 0), layout.index(jax.lax.axis_index("ring"))

    run = jax.shard_map(both, mesh=mesh, in_specs=split, out_specs=split, check_vma=False)
    x = jnp.arange(6 * devices)
    zigzag, restored, index = jax.jit(run)(x)
    np.testing.assert_array_equal(zigzag, index)
    np.testing.assert_array_equal(restored, x)


@pytest.mark.slow
def test_a_long_sequence_on_a_ring_of_eight() -> None:
    """32,768 tokens: what eight devices compute is what one does, and each holds its shard."""
    length = 32_768
    inputs = arrays(1, length, length, 2, 1, 16)
    call = aligned_call(Causal(), 1, length, is_packed=False)
    expected = results("blockwise", inputs, call)
    with use_placement(placement_of(sequence=8)):
        got = results("ring", inputs, call)
    assert_close(got, expected, 2e-5)


@pytest.mark.slow
@pytest.mark.parametrize("mask", [Causal(), Full()], ids=str)
def test_a_ring_of_eight_takes_less_than_half_of_the_memory(mask: Mask) -> None:
    """Compiled for 32,768 tokens, forwards and backwards; nothing is run.

    Its arrays are an eighth as large, but there are more of them: the KV shards are there twice.
    Measured: 175 MB alone, and 76 (causal) or 63 (full) on each of eight.
    """
    alone = temporaries("blockwise", mask, 32_768, backwards=True, width=128)
    with use_placement(placement_of(sequence=8)):
        each = temporaries("ring", mask, 32_768, backwards=True, width=128)
    assert each < alone / 2
