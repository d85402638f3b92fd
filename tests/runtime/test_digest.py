"""Digests: equal on every mesh, in parts and on the host; different after any damage."""

import re

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

from dovetail.runtime import digest as module
from dovetail.runtime.digest import (
    _digests,
    _shard_sums,
    add_sums,
    digests,
    host_device,
    named_leaves,
    read_digests,
    read_shard_digests,
    shard_digests,
    sums_of_part,
)

SHAPE = (4, 16, 24)
KINDS = ["float32", "bfloat16", "float8_e4m3fn", "int32", "uint8", "int8", "bool", "int4"]


def random_array(dtype: str) -> np.ndarray:
    values = np.random.default_rng(0).normal(0, 3, SHAPE)
    return values.astype(getattr(ml_dtypes, dtype, dtype))


def digest(array: object) -> str:
    return read_digests(digests({"a": array}))["a"].sums


LAYOUTS = [
    ((8,), P()),
    ((8,), P(None, "x")),
    ((8,), P(None, None, "x")),
    ((2, 4), P("x", "y")),
    ((4, 2), P("x", None, "y")),
]


@pytest.mark.parametrize("dtype", KINDS)
def test_it_is_the_same_on_every_mesh(dtype: str) -> None:
    array = random_array(dtype)
    expected = digest(jnp.asarray(array))
    for shape, spec in LAYOUTS:
        mesh = jax.make_mesh(shape, ("x", "y")[: len(shape)], (AxisType.Auto,) * len(shape))
        assert digest(jax.device_put(array, NamedSharding(mesh, spec))) == expected


def test_no_device_gets_the_array_of_another() -> None:
    mesh = jax.make_mesh((2, 4), ("x", "y"), (AxisType.Auto,) * 2)
    array = jax.device_put(random_array("float32"), NamedSharding(mesh, P(None, "x", "y")))
    text = _digests.lower({"a": array}).compile().as_text()
    gathered = re.findall(r"u32\[([\d,]*)\]\S* all-gather\(", text)
    assert gathered, "the sums are gathered"
    assert all(np.prod([int(n) for n in shape.split(",")]) <= 8 for shape in gathered)


@pytest.mark.parametrize("dtype", KINDS)
def test_parts_on_the_host_add_up(dtype: str) -> None:
    array = random_array(dtype)
    cuts = [(slice(0, 3), slice(0, 5)), (slice(0, 3), slice(5, 16)), (slice(3, 4), slice(0, 16))]
    parts = [
        sums_of_part(array[cut], [span.start for span in (*cut, slice(0, 24))]) for cut in cuts
    ]
    assert add_sums(parts) == digest(jnp.asarray(array))
    assert add_sums(parts[:2]) != digest(jnp.asarray(array))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int8"])
def test_every_flipped_bit_is_noticed(dtype: str) -> None:
    array, random = random_array(dtype), np.random.default_rng(1)
    expected = digest(jnp.asarray(array))
    for _ in range(200):
        damaged = array.copy()
        flat = damaged.view(np.uint8).reshape(-1)
        flat[random.integers(flat.size)] ^= np.uint8(1 << random.integers(8))
        assert digest(jnp.asarray(damaged)) != expected


def test_moved_elements_are_noticed() -> None:
    array = random_array("float32")
    swapped = array[[1, 0, 2, 3]]
    zeroed = array.copy()
    zeroed[2] = 0
    assert len({digest(jnp.asarray(each)) for each in (array, swapped, zeroed)}) == 3
    assert digest(jnp.zeros((2, 3))) == digest(jnp.zeros((5,)))  # zeros add nothing


def test_a_process_without_a_cpu_backend_has_the_same_digests(monkeypatch):
    """As with JAX_PLATFORMS=cuda."""
    part = np.random.default_rng(0).normal(size=(300, 70)).astype(np.float32)
    before = sums_of_part(part, (3, 0))
    devices = jax.local_devices()

    def local_devices(backend=None):
        if backend == "cpu":
            raise RuntimeError("Unknown backend cpu")
        return devices

    monkeypatch.setattr(jax, "local_devices", local_devices)
    assert host_device() == devices[0]
    assert sums_of_part(part, (3, 0)) == before


def test_each_device_has_a_digest_of_its_own_shards() -> None:
    mesh = jax.make_mesh((2, 4), ("x", "y"), (AxisType.Auto,) * 2)
    array = random_array("float32")
    tree = {
        "replicated": jax.device_put(array, NamedSharding(mesh, P())),
        "sharded": jax.device_put(array, NamedSharding(mesh, P(None, None, "y"))),
        "step": jax.device_put(np.int32(3), NamedSharding(mesh, P())),
    }
    computed = shard_digests(tree)
    rows = read_shard_digests(computed)
    assert sorted(rows) == list(range(8))
    assert {row[0] for row in rows.values()} == {digest(array)}
    for position, row in rows.items():
        part = array[:, :, 6 * (position % 4) :][:, :, :6]
        assert row[1] == digest(np.ascontiguousarray(part))
    text = _shard_sums(mesh, (P(), P(None, None, "y"), P())).lower(*tree.values()).compile()
    assert not re.findall(r"all-(gather|reduce)", text.as_text()), "nothing is communicated"


def test_layers_of_a_stack_of_2_to_the_33_elements_have_different_keys() -> None:
    """64 layers of 8192 x 8192 apart, true strides would be equal modulo 2^32."""
    part = np.ones((1, 2, 2), np.float32)
    assert sums_of_part(part, (0, 0, 0)) != sums_of_part(part, (64, 0, 0))


def test_what_is_not_finite_is_known() -> None:
    tree = {"good": jnp.ones(3), "bad": jnp.array([1.0, jnp.nan]), "step": jnp.int32(7)}
    found = read_digests(digests(tree))
    assert {name: each.finite for name, each in found.items()} == {
        "good": True,
        "bad": False,
        "step": True,
    }


def test_paths_of_nested_trees() -> None:
    tree = {"params": {"a/b": jnp.zeros(1)}, "optimizer": [jnp.zeros(2), {"m": jnp.zeros(3)}]}
    assert sorted(named_leaves(tree)) == ["optimizer/0", "optimizer/1/m", "params/a/b"]


@pytest.mark.parametrize("shape", [(), (7,), (3, 5), (2, 3, 4)])
@pytest.mark.parametrize(
    "dtype", ["float32", "bfloat16", "float8_e4m3fn", "int8", "int4", "uint32", "bool", "float16"]
)
def test_small_arrays_on_the_host_have_the_same_sums(
    monkeypatch: pytest.MonkeyPatch, dtype: str, shape: tuple[int, ...]
) -> None:
    values = np.random.default_rng(0).integers(-7, 7, shape)
    part = np.asarray(values).astype(jnp.dtype(dtype))
    start = [3] * len(shape)
    by_numpy = sums_of_part(part, start)
    monkeypatch.setattr(module, "_SMALL", -1)
    assert sums_of_part(part, start) == by_numpy
