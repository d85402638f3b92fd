"""The reference attention against JAX's own, and the op's guarantees beyond it."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dovetail.kernels import prefer
from dovetail.kernels.attention import Causal, Full, Mask, Prefix, SlidingWindow, attention
from tests.kernels.attention.cases import aligned_call, arrays


@pytest.fixture(autouse=True)
def reference() -> Iterator[None]:
    """Makes the op run the reference."""
    with prefer(attention="reference"):
        yield


def judge(mask: Mask, query: jax.Array, key: jax.Array, value: jax.Array) -> jax.Array:
    """Returns what JAX's own attention says."""
    positions = jnp.arange(query.shape[1])
    allowed = mask.allowed(positions[:, None], positions[None, :])
    return jax.nn.dot_product_attention(query, key, value, mask=allowed[None, None])


@pytest.mark.parametrize(
    ("mask", "heads"),
    [
        (Full(), (4, 4)),
        (Causal(), (4, 2)),
        (SlidingWindow(7), (6, 1)),
        (Causal() | Prefix(5), (4, 2)),
    ],
    ids=str,
)
def test_it_agrees_with_jax(mask: Mask, heads: tuple[int, int]) -> None:
    call = aligned_call(mask, 2, 24, is_packed=False)

    @jax.jit
    def both(*inputs: jax.Array) -> list[tuple[jax.Array, tuple[jax.Array, ...]]]:
        results = []
        for function in (partial(attention, **call), partial(judge, mask)):
            mixed, pull = jax.vjp(function, *inputs)
            results.append((mixed, pull(jnp.cos(mixed))))
        return results

    ours, theirs = both(*arrays(2, 24, 24, *heads, 8))
    for got, expected in zip(jax.tree.leaves(ours), jax.tree.leaves(theirs), strict=True):
        np.testing.assert_allclose(got, expected, atol=1e-5)


def test_half_precision_inputs_keep_their_dtype_and_a_float32_softmax() -> None:
    inputs = arrays(2, 32, 32, 4, 2, 8, "bfloat16")
    call = aligned_call(Causal(), 2, 32, is_packed=False)
    run = jax.jit(partial(attention, **call))
    mixed = run(*inputs)
    assert mixed.dtype == jnp.bfloat16
    widened = run(*(np.asarray(array, np.float32) for array in inputs))
    np.testing.assert_allclose(np.asarray(mixed, np.float32), widened, atol=2e-2)


def test_scores_are_scaled() -> None:
    query, key, value = arrays(1, 8, 8, 2, 2, 4)
    call = aligned_call(Causal(), 1, 8, is_packed=False)
    doubled = jax.jit(partial(attention, **call, scale=1.0))(query, key, value)
    plain = jax.jit(partial(attention, **call))(2 * np.asarray(query), key, value)
    np.testing.assert_allclose(doubled, plain, atol=1e-6)


def test_packed_documents_are_independent() -> None:
    inputs = arrays(2, 48, 48, 4, 2, 8)
    call = aligned_call(Causal(), 2, 48, is_packed=True)
    mixed = np.asarray(jax.jit(partial(attention, **call))(*inputs))
    segments = np.asarray(call["q_segment_ids_BS"])
    for row, segment in ((0, 1), (1, 3)):
        piece = np.flatnonzero(segments[row] == segment)
        alone = jax.jit(partial(attention, **aligned_call(Causal(), 1, len(piece), False)))
        got = alone(*(np.asarray(array)[row : row + 1, piece] for array in inputs))
        np.testing.assert_allclose(mixed[row, piece], np.asarray(got)[0], atol=1e-6)
    assert not mixed[segments == 0].any()


def test_unaligned_keys_are_masked_by_position_not_by_index() -> None:
    query, key, value = (np.asarray(array) for array in arrays(1, 3, 10, 2, 1, 4))
    positions = jnp.asarray([[4, 5, 6]])

    @jax.jit
    def run(key: jax.Array, value: jax.Array, places: jax.Array) -> jax.Array:
        call = {"mask": Causal(), "q_positions_BS": positions, "aligned": False}
        return attention(jnp.asarray(query), key, value, **call, kv_positions_BT=places)

    straight = run(key, value, np.arange(10)[None])
    order = np.random.default_rng(0).permutation(10)
    shuffled = run(key[:, order], value[:, order], order[None])
    np.testing.assert_allclose(straight, shuffled, atol=1e-6)
    within = run(key[:, :7], value[:, :7], np.arange(7)[None])
    np.testing.assert_allclose(straight, within, atol=1e-6)
