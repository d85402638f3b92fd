"""Every family computes what transformers computes: plain, padded, packed, and token by token."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

from dovetail.layers import TokenContext
from dovetail.models import families
from dovetail.module import functional
from tests.parity.reference import pair

every_family = pytest.mark.parametrize("name", families())
LENGTH = 17


def tokens(rows: int, length: int = LENGTH) -> np.ndarray:
    return np.random.default_rng(1).integers(3, 96, (rows, length))


def their_logits(name: str, ids: np.ndarray, **options: Any) -> np.ndarray:
    with torch.no_grad():
        return pair(name).theirs(torch.tensor(ids), **options).logits.numpy()


def our_logits(name: str, ids: np.ndarray, positions: np.ndarray, segments: np.ndarray) -> Any:
    one = pair(name)

    @jax.jit
    def run(params: Any, variables: Any, ids: Any, context: TokenContext) -> Any:
        return functional(
            one.ours,
            params,
            (ids, context),
            variables=variables,
            method="all_logits",
            losses="discard",
        )[0]

    context = TokenContext(jnp.asarray(positions), jnp.asarray(segments))
    return np.asarray(run(one.params, one.variables, jnp.asarray(ids), context))


@every_family
def test_logits(name: str) -> None:
    ids = tokens(2)
    positions = np.broadcast_to(np.arange(LENGTH), ids.shape)
    ours = our_logits(name, ids, positions, np.ones_like(ids))
    close(ours, their_logits(name, ids))


@every_family
def test_padding(name: str) -> None:
    ids, lengths = tokens(2), [LENGTH, 11]
    mask = (np.arange(LENGTH) < np.asarray(lengths)[:, None]).astype(np.int64)
    positions = np.broadcast_to(np.arange(LENGTH), ids.shape)
    ours = our_logits(name, ids, positions, mask)
    theirs = their_logits(name, ids, attention_mask=torch.tensor(mask))
    for row, length in enumerate(lengths):
        close(ours[row, :length], theirs[row, :length])


@every_family
def test_packed_segments(name: str) -> None:
    parts = [tokens(1, 10), tokens(1, 7)[:, ::-1].copy()]
    ids = np.concatenate(parts, axis=1)
    positions = np.concatenate([np.arange(10), np.arange(7)])[None]
    segments = np.asarray([[1] * 10 + [2] * 7])
    ours = our_logits(name, ids, positions, segments)
    theirs = np.concatenate([their_logits(name, part) for part in parts], axis=1)
    close(ours, theirs)


def close(ours: np.ndarray, theirs: np.ndarray) -> None:
    """The largest difference, against the largest logit."""
    difference = np.abs(ours - theirs).max()
    assert difference <= 1e-4, difference
    assert difference / np.abs(theirs).max() <= 1e-5, (difference, np.abs(theirs).max())
