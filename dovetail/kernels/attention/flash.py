"""What flash kernels have in common: what they keep for the backward pass, and sinks' gradients.

A kernel gives the output with the logarithm of each row's sum of weights, and computes gradients
from those: nothing of the size of all scores is ever kept.

B batch, S sequence, H heads, K key-value heads, D width of queries and keys, W of values.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from dovetail.kernels.attention.masks import Band
from dovetail.kernels.attention.op import OUTPUT_TAG
from dovetail.kernels.attention.scores import sinks_gradient
from dovetail.kernels.score_maps import ScoreMap
from dovetail.parallel import tag


class Rows(NamedTuple):
    """What the backward pass is given for each row.

    Attributes:
        mixed_BSHW: the output.
        gradient_BSHW: its gradient.
        log_BHS: the logarithm of the sum of weights.
        mean_BHS: the sum of shares times their gradients, which is the output times its own.
    """

    mixed_BSHW: jax.Array
    gradient_BSHW: jax.Array
    log_BHS: jax.Array
    mean_BHS: jax.Array


def rows_of(mixed_BSHW: jax.Array, gradient_BSHW: jax.Array, log_BHS: jax.Array) -> Rows:
    """Returns what the backward pass is given."""
    product_BSHW = mixed_BSHW.astype(jnp.float32) * gradient_BSHW.astype(jnp.float32)
    mean_BHS = product_BSHW.sum(axis=-1).swapaxes(1, 2)
    return Rows(mixed_BSHW, gradient_BSHW, log_BHS, mean_BHS)


class Flash(NamedTuple):
    """A pair of kernels with all that is known of a call before any array; hashable.

    Attributes:
        forward: from this, queries, keys, values, segments and sinks to the output and its log.
        backward: from this, queries, keys, values, segments and `Rows` to the first three's
            gradients.
        band: what is visible.
        scale: what scores are multiplied with.
        score_map: what is done to them then.
        interpret: whether kernels are run step by step.
    """

    forward: Callable[..., tuple[jax.Array, jax.Array]]
    backward: Callable[..., tuple[jax.Array, jax.Array, jax.Array]]
    band: Band
    scale: float
    score_map: ScoreMap | None
    interpret: bool


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def attend(
    flash: Flash,
    query_BSHD: jax.Array,
    key_BSKD: jax.Array,
    value_BSKW: jax.Array,
    segments_BS: jax.Array | None,
    sinks_H: jax.Array | None,
) -> jax.Array:
    """Computes one device's part; what stands in the rows of padding means nothing."""
    return _forward(flash, query_BSHD, key_BSKD, value_BSKW, segments_BS, sinks_H)[0]


def _forward(
    flash: Flash,
    query_BSHD: jax.Array,
    key_BSKD: jax.Array,
    value_BSKW: jax.Array,
    segments_BS: jax.Array | None,
    sinks_H: jax.Array | None,
) -> tuple[jax.Array, tuple[Any, ...]]:
    inputs = (query_BSHD, key_BSKD, value_BSKW, segments_BS)
    mixed_BSHW, log_BHS = flash.forward(flash, *inputs, sinks_H)
    # Both carry the tag: a policy that keeps the output spares the backward pass this one.
    mixed_BSHW, log_BHS = tag(mixed_BSHW, OUTPUT_TAG), tag(log_BHS, OUTPUT_TAG)
    return mixed_BSHW, (*inputs, sinks_H, mixed_BSHW, log_BHS)


def _backward(flash: Flash, kept: tuple[Any, ...], gradient_BSHW: jax.Array) -> tuple[Any, ...]:
    *inputs, sinks_H, mixed_BSHW, log_BHS = kept
    rows = rows_of(mixed_BSHW, gradient_BSHW, log_BHS)
    gradients = flash.backward(flash, *inputs, rows)
    # Each head has its own sink, as if no two shared a key-value head.
    to_sinks_H = sinks_gradient(sinks_H, log_BHS[:, :, None], rows.mean_BHS[:, :, None])
    return (*gradients, None, to_sinks_H)


attend.defvjp(_forward, _backward)
