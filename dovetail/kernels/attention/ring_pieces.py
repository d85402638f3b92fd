"""A ring's work at a time: the queries of one range of a sequence with the keys of another.

An implementation registers with `piece_op`, which makes the choice that `attention_op` makes for
whole sequences. It is a pair of passes. Neither knows of a ring: one gives an output with the
logarithm of its rows' sums, by which outputs are joined; the other gives gradients from the same of
all ranges together.

B batch, S queries, T keys, H heads, K key-value heads, D width of queries and keys, W of values.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from dovetail.kernels.attention.ring_layouts import RingLayout
from dovetail.kernels.attention.scores import LOW, Rule
from dovetail.kernels.registry import Op

piece_op = Op("attention_piece")
"""From a call's queries, keys and values (all of them), `rule=` and `layout=` to `Pieces`."""


class Pieces(NamedTuple):
    """How a ring's pieces are computed: all that is known before any array, and so hashable.

    Attributes:
        describe: from this, and the positions and segments (or None) of a device's part of the
            sequence, to arrays that tell all that a pass wants to know of the tokens that the
            device has in the layout. Each has those along axis 1; they go round with the keys.
        forward: from this, queries, keys, values, and what `describe` told of both, to `Mixed`.
        backward: from the same and `flash.Rows` to gradients of queries, keys and values.
        rule: what is done to scores.
        layout: which tokens a device has.
        interpret: whether kernels are run step by step.
    """

    describe: Callable[..., Any]
    forward: Callable[..., Mixed]
    backward: Callable[..., tuple[jax.Array, jax.Array, jax.Array]]
    rule: Rule
    layout: RingLayout
    interpret: bool = False


class Mixed(NamedTuple):
    """What queries make of some keys: the output, and the logarithm of each row's sum."""

    mixed_BSHW: jax.Array
    log_BHS: jax.Array


def of_nothing(query_BSHD: jax.Array, value_BTKW: jax.Array) -> Mixed:
    """Returns what queries make of no keys."""
    batch, queries, heads, _ = query_BSHD.shape
    mixed_BSHW = jnp.zeros((batch, queries, heads, value_BTKW.shape[3]))
    return Mixed(mixed_BSHW, jnp.full((batch, heads, queries), LOW))


def joined(rule: Rule, one: Mixed, other: Mixed) -> Mixed:
    """Returns what queries make of the keys of both."""
    if rule.weigh is not None:  # keys are weighed by themselves: outputs add up
        return Mixed(one.mixed_BSHW + other.mixed_BSHW, one.log_BHS)
    log_BHS = jnp.logaddexp(one.log_BHS, other.log_BHS)
    mixed_BSHW = _faded(one, log_BHS) + _faded(other, log_BHS)
    return Mixed(mixed_BSHW, log_BHS)


def with_sinks(rule: Rule, mixed: Mixed, sinks_H: jax.Array | None) -> Mixed:
    """Returns what is left of an output where each row's sum has its head's sink, too."""
    if sinks_H is None or rule.weigh is not None:
        return mixed
    log_BHS = jnp.logaddexp(mixed.log_BHS, sinks_H.astype(jnp.float32)[:, None])
    return Mixed(_faded(mixed, log_BHS), log_BHS)


def _faded(mixed: Mixed, log_BHS: jax.Array) -> jax.Array:
    share_BHS = jnp.exp(mixed.log_BHS - log_BHS)
    return mixed.mixed_BSHW * share_BHS.swapaxes(1, 2)[..., None]
