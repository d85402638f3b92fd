"""A softmax over keys that come a block at a time (https://arxiv.org/abs/1805.02867).

B batch, S queries, T keys, H heads, K key-value heads, G heads that share one, D width of queries
and keys, W of values; S and T count what belongs to a block.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp

from dovetail.kernels.attention.scores import (
    LOW,
    Places,
    Rule,
    biased,
    mapped,
    scaled_scores,
    weighed,
)


class Seen(NamedTuple):
    """What queries have seen so far: the highest score, the sum of shares, and values."""

    top_BKGS: jax.Array
    sum_BKGS: jax.Array
    mixed_BKGSW: jax.Array


def seen_nothing(rows: tuple[int, ...], width: int) -> Seen:
    """Returns the state of queries [B, K, G, S] that have seen no key."""
    return Seen(jnp.full(rows, LOW), jnp.zeros(rows), jnp.zeros((*rows, width)))


def look(
    rule: Rule,
    places: Places,
    allowed_BKTGS: jax.Array,
    seen: Seen,
    query_BKGSD: jax.Array,
    key_BKTD: jax.Array,
    value_BKTW: jax.Array,
) -> Seen:
    """Returns what has been seen after one more block of keys."""
    score_BKTGS, _ = mapped(rule.score_map, scaled_scores(rule, query_BKGSD, key_BKTD))
    score_BKTGS = biased(rule, places, score_BKTGS)
    if rule.weigh is not None:
        share_BKTGS = jnp.where(allowed_BKTGS, rule.weigh(score_BKTGS), 0)
        mixed_BKGSW = weighed(share_BKTGS, value_BKTW).reshape(seen.mixed_BKGSW.shape)
        return seen._replace(mixed_BKGSW=seen.mixed_BKGSW + mixed_BKGSW)
    score_BKTGS = jnp.where(allowed_BKTGS, score_BKTGS, LOW)
    top_BKGS = jnp.maximum(seen.top_BKGS, score_BKTGS.max(axis=2))
    share_BKTGS = jnp.where(allowed_BKTGS, jnp.exp(score_BKTGS - top_BKGS[:, :, None]), 0)
    mixed_BKGSW = weighed(share_BKTGS, value_BKTW).reshape(seen.mixed_BKGSW.shape)
    fade_BKGS = jnp.exp(seen.top_BKGS - top_BKGS)
    return Seen(
        top_BKGS,
        fade_BKGS * seen.sum_BKGS + share_BKTGS.sum(axis=2),
        fade_BKGS[..., None] * seen.mixed_BKGSW + mixed_BKGSW,
    )


def closed(rule: Rule, seen: Seen, sinks_KG1: jax.Array | None) -> tuple[jax.Array, jax.Array]:
    """Returns the output of queries, and the log of the softmax's denominator."""
    if rule.weigh is not None:
        return seen.mixed_BKGSW, jnp.zeros_like(seen.top_BKGS)
    top_BKGS, sum_BKGS, mixed_BKGSW = seen
    if sinks_KG1 is not None:
        top_BKGS = jnp.maximum(top_BKGS, sinks_KG1)
        fade_BKGS = jnp.exp(seen.top_BKGS - top_BKGS)
        sum_BKGS = fade_BKGS * sum_BKGS + jnp.exp(sinks_KG1 - top_BKGS)
        mixed_BKGSW = fade_BKGS[..., None] * mixed_BKGSW
    # A query that sees no key has a sum of 0, shares of 0, and so an output of 0.
    sum_BKGS = jnp.where(sum_BKGS == 0, 1, sum_BKGS)
    return mixed_BKGSW / sum_BKGS[..., None], top_BKGS + jnp.log(sum_BKGS)
