"""Attention over a split sequence by exchange: all tokens of fewer heads (arXiv 2309.14509).

Devices that each have all heads of a part of the sequence trade them for the whole sequence of a
part of the heads, compute as if nothing were split, with whichever kernel is best for that, and
trade back. So all have equal work under any mask, and a kernel runs as it is. Where key-value heads
do not divide over the devices, as with fewer of them, a head goes to each device that has queries
of it: never more than if all were gathered. Where heads of queries do not divide, keys go round a
`ring`.
"""

from __future__ import annotations

import math
from typing import Any

import jax
import jax.numpy as jnp

from dovetail.kernels.attention.device_parts import is_sequence_split, split_refusal
from dovetail.kernels.attention.op import attention_op
from dovetail.kernels.score_maps import ScoreBias
from dovetail.kernels.sharded import mesh_axes, on_each_device, parts


def _supports(
    query_BSHD: jax.Array,
    key_BTKD: jax.Array,
    *_: Any,
    aligned: bool,
    score_bias: ScoreBias | None = None,
    **__: Any,
) -> str | None:
    if score_bias is not None:
        return f"{score_bias} counts heads, which would be split over devices"
    refusal = split_refusal(query_BSHD, key_BTKD, aligned)
    if refusal is not None:
        return refusal
    heads, kv_heads, devices = query_BSHD.shape[2], key_BTKD.shape[2], parts("sequence")
    if heads // kv_heads % copies_of(kv_heads // parts("kv_heads"), devices):
        return (
            f"{heads} heads that share {kv_heads} for keys and values do not divide over "
            f"{devices * parts('heads')} devices"
        )
    return None


def copies_of(kv_heads: int, devices: int) -> int:
    """Returns how often each key-value head is sent, so that every device gets equally many."""
    return devices // math.gcd(kv_heads, devices)


@attention_op.register("ulysses", supports=_supports, when=is_sequence_split, before="ring")
def ulysses(
    query_BSHD: jax.Array,
    key_BTKD: jax.Array,
    value_BTKW: jax.Array,
    *,
    query_positions_BS: jax.Array,
    query_segments_BS: jax.Array | None,
    sinks_H: jax.Array | None = None,
    **call: Any,
) -> jax.Array:
    """Exchanges, runs the op on what is whole then, and exchanges back; see `attention`."""
    axes = mesh_axes("sequence")
    copies = copies_of(key_BTKD.shape[2] // parts("kv_heads"), parts("sequence"))
    for name in ("key_positions_BT", "key_segments_BT"):
        del call[name]  # those of the queries: the call is aligned

    def part(query: Any, key: Any, value: Any, positions: Any, segments: Any, sinks: Any) -> Any:
        key, value = (jnp.repeat(array, copies, axis=2) for array in (key, value))
        whole = [_exchanged(array, axes, 2, 1) for array in (query, key, value)]
        positions, segments = (_gathered(array, axes) for array in (positions, segments))
        mixed_BSHW = attention_op.hand_on(
            *whole,
            query_positions_BS=positions,
            key_positions_BT=positions,
            query_segments_BS=segments,
            key_segments_BT=segments,
            sinks_H=sinks,
            **call,
        )
        return _exchanged(mixed_BSHW, axes, 1, 2)

    tokens, heads = ("batch", "sequence"), ("batch", "sequence", "heads", None)
    keys = ("batch", "sequence", "kv_heads", None)
    run = on_each_device(part, (heads, keys, keys, tokens, tokens, (("heads", "sequence"),)), heads)
    arrays = (query_BSHD, key_BTKD, value_BTKW, query_positions_BS, query_segments_BS, sinks_H)
    mixed_BSHW: jax.Array = run(*arrays)
    return mixed_BSHW


def _exchanged(array: jax.Array, axes: tuple[str, ...], split: int, joined: int) -> jax.Array:
    return jax.lax.all_to_all(array, axes, split, joined, tiled=True)


def _gathered(array: jax.Array | None, axes: tuple[str, ...]) -> jax.Array | None:
    return None if array is None else jax.lax.all_gather(array, axes, axis=1, tiled=True)
