"""The TPU kernels over key ranges, interpreted, in several blocks, against all scores at once."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dovetail.kernels.attention import Causal, Full, Mask, SlidingWindow, SoftCap
from dovetail.kernels.attention.flash import backward_inputs
from dovetail.kernels.attention.ranges import TokenRanges, kv_ranges, q_ranges
from dovetail.kernels.attention.shards import band_of
from dovetail.kernels.attention.tpu import kernels
from dovetail.kernels.attention.xla.scores import LOW
from tests.kernels.attention.cases import aligned_call, arrays, record

# Four blocks of queries and four of keys; the sequence has two such chunks.
CHUNK, BLOCK = 512, 128
OPTIONS = kernels.TPUOptions(0.4, SoftCap(3.0), BLOCK, interpret=True)
# Documents that end within a block, at the end of one, and in the other chunk.
SEGMENTS = jnp.asarray([[1] * 200 + [2] * 184 + [3] * 300 + [4] * 340, [1] * 1024])


def ranges_of(mask: Mask, queries: int, keys: int) -> tuple[TokenRanges, TokenRanges]:
    """Returns the key ranges of one chunk in another, and the query ranges the other way."""

    def cut(ranges: TokenRanges, own: int, other: int) -> TokenRanges:
        start, stop = (array[:, own : own + CHUNK] - other for array in ranges)
        return TokenRanges(jnp.clip(start, 0, CHUNK), jnp.clip(stop, 0, CHUNK))

    whole = [find(band_of(mask), SEGMENTS, SEGMENTS.shape) for find in (kv_ranges, q_ranges)]
    return cut(whole[0], queries, keys), cut(whole[1], keys, queries)


def plain(q: Any, k: Any, v: Any, ranges: TokenRanges) -> tuple[Any, Any]:
    """Computes output and logsumexp with all scores; a fully masked row has 0 and LOW."""
    group = q.shape[2] // k.shape[2]
    k, v = (jnp.repeat(array, group, axis=2) for array in (k, v))
    s_BHST = OPTIONS.score_map(jnp.einsum("bshd,bthd->bhst", q, k) * OPTIONS.scale)
    index_T = jnp.arange(k.shape[1])
    visible = (index_T >= ranges.start_BS[..., None]) & (index_T < ranges.stop_BS[..., None])
    s_BHST = jnp.where(visible[:, None], s_BHST, -jnp.inf)
    m_BHS1 = jnp.where(visible.any(-1)[:, None], s_BHST.max(-1), 0)[..., None]
    p_BHST = jnp.exp(s_BHST - m_BHS1)
    l_BHS = p_BHST.sum(-1)
    p_BHST = p_BHST / jnp.where(l_BHS == 0, 1, l_BHS)[..., None]
    lse_BHS = jnp.where(l_BHS == 0, LOW, m_BHS1[..., 0] + jnp.log(l_BHS))
    return jnp.einsum("bhst,bthw->bshw", p_BHST, v), lse_BHS


@pytest.mark.parametrize(
    ("queries", "keys"), [(0, 0), (512, 0), (0, 512)], ids=["its own", "before", "after"]
)
@pytest.mark.parametrize("mask", [Causal(), SlidingWindow(300), Full()], ids=str)
def test_outputs_and_gradients(mask: Mask, queries: int, keys: int) -> None:
    qkv = arrays(2, CHUNK, CHUNK, 4, 2, 16, "float32", 24)
    own_keys, own_queries = ranges_of(mask, queries, keys)
    (o, lse), vjp = jax.vjp(lambda *a: plain(*a, own_keys), *qkv)
    call = record(qkv, aligned_call(mask, 2, CHUNK, is_packed=False))
    got_o, got_lse = kernels.forward(OPTIONS, call, own_keys)
    attends = np.asarray(own_keys.stop_BS > own_keys.start_BS)
    assert np.isfinite(got_o).all()
    close(np.where(attends[..., None, None], got_o, 0), o)
    assert (np.asarray(got_lse).swapaxes(1, 2)[~attends] == LOW).all(), "it weighs nothing"
    close(got_lse.swapaxes(1, 2)[attends], lse.swapaxes(1, 2)[attends])
    do = jnp.where(jnp.asarray(attends)[..., None, None], jnp.cos(o), 0)
    given = backward_inputs(o, do, lse)
    gradients = kernels.backward(OPTIONS, call, own_keys, own_queries, given)
    for one, expected in zip(gradients, vjp((do, jnp.zeros_like(lse))), strict=True):
        close(one, expected)


def close(got: Any, expected: Any) -> None:
    np.testing.assert_allclose(got, expected, rtol=0, atol=2e-5)
