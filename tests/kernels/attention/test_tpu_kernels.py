"""The kernels over ranges for TPUs, interpreted, in several blocks, against all scores at once."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dovetail.kernels.attention import Causal, Full, Mask, SlidingWindow, SoftCap
from dovetail.kernels.attention import tpu_kernels as kernels
from dovetail.kernels.attention.device_parts import band_of
from dovetail.kernels.attention.flash import rows_of
from dovetail.kernels.attention.ranges import Ranges, seen_by, that_see
from dovetail.kernels.attention.scores import LOW
from tests.kernels.attention.cases import arrays

# Four blocks of queries and four of keys; the sequence has two such pieces.
PIECE, BLOCK = 512, 128
HOW = kernels.How(0.4, SoftCap(3.0), BLOCK, interpret=True)
# Documents that end within a block, at the end of one, and in the other piece.
SEGMENTS = jnp.asarray([[1] * 200 + [2] * 184 + [3] * 300 + [4] * 340, [1] * 1024])


def ranges_of(mask: Mask, queries: int, keys: int) -> tuple[Ranges, Ranges]:
    """Returns what the queries of one piece see of the keys of another, and the other way."""

    def cut(ranges: Ranges, own: int, other: int) -> Ranges:
        start, stop = (array[:, own : own + PIECE] - other for array in ranges)
        return Ranges(jnp.clip(start, 0, PIECE), jnp.clip(stop, 0, PIECE))

    seen, seeing = (find(band_of(mask), SEGMENTS, SEGMENTS.shape) for find in (seen_by, that_see))
    return cut(seen, queries, keys), cut(seeing, keys, queries)


def plain(query: Any, key: Any, value: Any, seen: Ranges) -> tuple[Any, Any]:
    """Computes output and logarithms with all scores; a row that sees nothing has LOW and 0."""
    shared = query.shape[2] // key.shape[2]
    key, value = (jnp.repeat(array, shared, axis=2) for array in (key, value))
    score_BHST = HOW.score_map(jnp.einsum("bshd,bthd->bhst", query, key) * HOW.scale)
    index_T = jnp.arange(key.shape[1])
    visible = (index_T >= seen.start_BS[..., None]) & (index_T < seen.stop_BS[..., None])
    score_BHST = jnp.where(visible[:, None], score_BHST, -jnp.inf)
    top = jnp.where(visible.any(-1)[:, None], score_BHST.max(-1), 0)[..., None]
    weight_BHST = jnp.exp(score_BHST - top)
    total = weight_BHST.sum(-1)
    share_BHST = weight_BHST / jnp.where(total == 0, 1, total)[..., None]
    log_BHS = jnp.where(total == 0, LOW, top[..., 0] + jnp.log(total))
    return jnp.einsum("bhst,bthw->bshw", share_BHST, value), log_BHS


@pytest.mark.parametrize(
    ("queries", "keys"), [(0, 0), (512, 0), (0, 512)], ids=["its own", "before", "after"]
)
@pytest.mark.parametrize("mask", [Causal(), SlidingWindow(300), Full()], ids=str)
def test_outputs_and_gradients(mask: Mask, queries: int, keys: int) -> None:
    query, key, value = arrays(2, PIECE, PIECE, 4, 2, 16, "float32", 24)
    seen, seeing = ranges_of(mask, queries, keys)
    (mixed, log), pull = jax.vjp(lambda *a: plain(*a, seen), query, key, value)
    got_mixed, got_log = kernels.forward(HOW, query, key, value, seen)
    sees = np.asarray(seen.stop_BS > seen.start_BS)
    assert np.isfinite(got_mixed).all()
    close(np.where(sees[..., None, None], got_mixed, 0), mixed)
    assert (np.asarray(got_log).swapaxes(1, 2)[~sees] == LOW).all(), "it weighs nothing"
    close(got_log.swapaxes(1, 2)[sees], log.swapaxes(1, 2)[sees])
    gradient = jnp.where(jnp.asarray(sees)[..., None, None], jnp.cos(mixed), 0)
    rows = rows_of(mixed, gradient, log)
    found = (
        kernels.query_gradients(HOW, query, key, value, seen, rows),
        *kernels.key_gradients(HOW, query, key, value, seen, seeing, rows),
    )
    for one, expected in zip(found, pull((gradient, jnp.zeros_like(log))), strict=True):
        close(one, expected)


def close(got: Any, expected: Any) -> None:
    np.testing.assert_allclose(got, expected, rtol=0, atol=2e-5)
