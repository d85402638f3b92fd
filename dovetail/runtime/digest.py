"""Digests of arrays: two 32-bit sums over all elements, from their indices and their bits.

Equal arrays have equal digests, bit for bit, on any mesh and any number of hosts, on a device or in
a file. Checkpoints store digests. Replicas and resharded arrays are compared by them.

Each element adds key(index) * bits, modulo 2^32. The sum does not depend on the order, so every
device sums its own shard, and a part of an array has a part of the sum. Keys are odd, so a change
of one element always changes both sums: a flipped bit changes bits by a power of two, and an odd
key times a power of two below 2^32 is not 0. Larger damage goes unnoticed once in about 2^60.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, PartitionSpec

_SMALL = 2**18
"""Up to so many elements on the host, NumPy is quicker than compiling a program."""
_MAX_COPIED = 16 * 2**20
"""The most bytes of an array on the host that are copied for JAX at once."""

_WORDS = {1: jnp.uint8, 2: jnp.uint16, 4: jnp.uint32, 8: jnp.uint32}


class Digest(NamedTuple):
    """The digest of an array, and whether all its elements are finite."""

    sums: str
    finite: bool


def digests(tree: Any) -> dict[str, jax.Array]:
    """Starts to compute the digests of all arrays of a tree, on the devices; `read_digests` waits.

    Call it before the arrays are donated. With several processes, all call it.
    """
    by_devices: dict[Any, dict[str, jax.Array]] = {}  # one program has one set of devices
    for path, leaf in named_leaves(tree).items():
        if leaf.size:
            by_devices.setdefault(_devices(leaf), {})[path] = leaf
    return {path: sums for here in by_devices.values() for path, sums in _digests(here).items()}


def read_digests(computed: Mapping[str, jax.Array]) -> dict[str, Digest]:
    """Waits for the digests of `digests`."""
    return {path: _as_digest(sums) for path, sums in jax.device_get(dict(computed)).items()}


def shard_digests(tree: Any) -> jax.Array:
    """Starts to compute a digest of each shard, on its own device, to compare replicas.

    The arrays are on one mesh. The result has the sums of every array for each device: devices in
    the order of the mesh, arrays in the order of `named_leaves`. Nothing is communicated.
    """
    leaves = list(named_leaves(tree).values())
    specs = tuple(leaf.sharding.spec for leaf in leaves)
    sums: jax.Array = _shard_sums(leaves[0].sharding.mesh, specs)(*leaves)
    return sums


def read_shard_digests(computed: jax.Array) -> dict[int, list[str]]:
    """Waits for `shard_digests`; returns the digests of this process's devices, by position."""
    shards = computed.addressable_shards
    return {
        shard.index[0].start or 0: [_hex(row) for row in np.asarray(shard.data)[0].tolist()]
        for shard in shards
    }


def sums_of_part(part: np.ndarray, start: Sequence[int]) -> list[int]:
    """Returns the sums of a part of an array, given the index at which it starts.

    The sums of parts that cover an array once add up to its digest (`add_sums`). It is computed on
    the host.
    """
    if part.nbytes > _MAX_COPIED and part.ndim and len(part) > 1:
        middle = len(part) // 2
        rest = (start[0] + middle, *start[1:])
        halves = sums_of_part(part[:middle], start), sums_of_part(part[middle:], rest)
        return [sum(pair) % 2**32 for pair in zip(*halves, strict=True)]
    host = host_device()
    if part.dtype.itemsize == 8 and part.dtype.kind != "c":  # JAX would make 32 bits of them
        part = part.reshape(-1).view(np.uint32).reshape(*part.shape, 2)
        start = (*start, 0)
    if part.size <= _SMALL and part.dtype.kind != "c":
        return _small_sums(part, start)
    arguments = (part, tuple(np.uint32(begin) for begin in start))
    sums = np.asarray(_part_sums(*jax.device_put(arguments, host)))
    return [int(sums[0]), int(sums[1])]


def _small_sums(part: np.ndarray, start: Sequence[int]) -> list[int]:
    """Computes `_sums` with NumPy, because compiling takes longer than a small array."""
    is_word = part.dtype != np.bool_ and part.dtype.name not in ("int2", "int4", "uint2", "uint4")
    word = f"u{part.dtype.itemsize}"
    bits = part.view(word) if is_word else part.astype(np.int32)
    bits = bits.astype(np.uint32)
    index = np.zeros(bits.shape, np.uint32)
    for axis, begin in enumerate(start):
        along = np.arange(bits.shape[axis], dtype=np.uint32) + np.uint32(begin)
        stride = _mix_small(np.full(1, axis + 1, np.uint32)) | 1
        index += (along * stride).reshape([-1 if a == axis else 1 for a in range(bits.ndim)])
    key = _mix_small(index.reshape(-1))
    other = (key ^ (key >> 15)) * np.uint32(0x2C1B3C6D)
    words = bits.reshape(-1)
    return [int((words * (each | 1)).sum(dtype=np.uint32)) for each in (key, other)]


def _mix_small(x: np.ndarray) -> np.ndarray:
    """Computes `_mix` with NumPy."""
    x = (x ^ (x >> 16)) * np.uint32(0x7FEB352D)
    x = (x ^ (x >> 15)) * np.uint32(0x846CA68B)
    return x ^ (x >> 16)


def host_device() -> jax.Device:
    """Returns the CPU device of this process, or its first device if JAX_PLATFORMS has no CPU."""
    try:
        return jax.local_devices(backend="cpu")[0]
    except RuntimeError:
        return jax.local_devices()[0]


def add_sums(parts: Sequence[Sequence[int]]) -> str:
    """Returns the digest of an array from the sums of its parts."""
    return _hex([sum(part[i] for part in parts) % 2**32 for i in (0, 1)])


def named_leaves(tree: Any) -> dict[str, Any]:
    """Returns the arrays of a tree by their paths, such as `params/decoder/norm/scale`."""
    leaves, _ = jax.tree_util.tree_flatten_with_path(tree)
    return {"/".join(map(_key_name, path)): leaf for path, leaf in leaves}


def _devices(leaf: Any) -> Any:
    return frozenset(leaf.sharding.device_set) if isinstance(leaf, jax.Array) else None


def _key_name(key: Any) -> str:
    for attribute in ("key", "name", "idx"):
        if hasattr(key, attribute):
            return str(getattr(key, attribute))
    return str(key)


@jax.jit
def _digests(leaves: dict[str, jax.Array]) -> dict[str, jax.Array]:
    """Returns for each array its two sums, and 1 if it is finite."""
    return {path: _sums_and_finite(leaf) for path, leaf in leaves.items()}


@functools.lru_cache(maxsize=16)
def _shard_sums(mesh: Mesh, specs: tuple[PartitionSpec, ...]) -> Callable[..., jax.Array]:
    """Returns the program of `shard_digests`."""

    def sums(*shards: jax.Array) -> jax.Array:
        rows = [_sums(shard, (0,) * shard.ndim)[:2] for shard in shards]
        return jnp.stack(rows)[None]

    def of_arrays(*arrays: jax.Array) -> jax.Array:
        here = [jax.device_put(array, jax.memory.Space.Device) for array in arrays]
        # No check that replicas are equal by construction: whether they are is the question.
        mapped = jax.shard_map(
            sums,
            mesh=mesh,
            in_specs=specs,
            out_specs=PartitionSpec(mesh.axis_names),
            check_vma=False,
        )
        result: jax.Array = mapped(*here)
        return result

    program: Callable[..., jax.Array] = jax.jit(of_arrays)
    return program


def _sums_and_finite(x: jax.Array) -> jax.Array:
    x = jax.device_put(x, jax.memory.Space.Device)  # offloaded arrays are on the host
    is_float = jnp.issubdtype(x.dtype, jnp.inexact)
    finite = jnp.isfinite(x) if is_float else jnp.ones(x.shape, bool)
    return _sums(x, (0,) * x.ndim, finite)


def _sums(x: jax.Array, start: Sequence[Any], finite: jax.Array | None = None) -> jax.Array:
    """Returns two sums of an array, or of a part that starts at an index, and if all is finite."""
    bits = _bits(x)
    index = jnp.zeros(bits.shape, jnp.uint32)
    for axis in range(bits.ndim):  # the last may be the words of an element
        begin = start[axis] if axis < x.ndim else 0
        along = jax.lax.broadcasted_iota(jnp.uint32, bits.shape, axis) + jnp.uint32(begin)
        # Not the true stride: a large stack's is a multiple of 2^32 after some layers, and
        # two layers with the same keys could be swapped.
        index += along * (_mix(jnp.uint32(axis + 1)) | 1)
    key = _mix(index)
    other = (key ^ (key >> 15)) * jnp.uint32(0x2C1B3C6D)
    if finite is None:
        finite = jnp.ones(x.shape, bool)
    is_finite = jnp.broadcast_to(finite.reshape(*x.shape, *(1,) * (bits.ndim - x.ndim)), bits.shape)
    # One reduction of three operands is one pass: ten times as fast as three on a CPU.
    results = jax.lax.reduce(
        (bits * (key | 1), bits * (other | 1), is_finite.astype(jnp.uint32)),
        (jnp.uint32(0), jnp.uint32(0), jnp.uint32(1)),
        lambda a, b: (a[0] + b[0], a[1] + b[1], a[2] & b[2]),
        tuple(range(bits.ndim)),
    )
    return jnp.stack(results)


_part_sums = jax.jit(_sums)


def _bits(x: jax.Array) -> jax.Array:
    """Returns the elements as unsigned words; eight bytes are two words, on a further axis."""
    if jnp.issubdtype(x.dtype, jnp.complexfloating):
        x = jnp.stack([x.real, x.imag], axis=-1)
    if x.dtype == jnp.bool_ or (
        jnp.issubdtype(x.dtype, jnp.integer) and jnp.iinfo(x.dtype).bits < 8
    ):
        return x.astype(jnp.int32).astype(jnp.uint32)
    return jax.lax.bitcast_convert_type(x, _WORDS[x.dtype.itemsize]).astype(jnp.uint32)


def _mix(x: jax.Array) -> jax.Array:
    """Mixes a word (the constants are of https://nullprogram.com/blog/2018/07/31/)."""
    x = (x ^ (x >> 16)) * jnp.uint32(0x7FEB352D)
    x = (x ^ (x >> 15)) * jnp.uint32(0x846CA68B)
    return x ^ (x >> 16)


def _as_digest(sums: np.ndarray) -> Digest:
    return Digest(_hex([int(sums[0]), int(sums[1])]), bool(sums[2]))


def _hex(sums: Sequence[int]) -> str:
    return "".join(f"{value:08x}" for value in sums)
