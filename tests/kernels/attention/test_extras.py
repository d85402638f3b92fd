"""Score maps, sinks and values of another width: both implementations against a plain formula."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding, PartitionSpec

from dovetail.kernels import prefer
from dovetail.kernels.attention import (
    Causal,
    Full,
    Mask,
    ScoreMap,
    SlidingWindow,
    SoftCap,
    attention,
)
from dovetail.parallel import MeshLayout
from tests.kernels.attention.cases import aligned_call, arrays

SINKS = np.asarray([0.7, -1.5, 3.0, 0.0], np.float32)


@dataclass(frozen=True)
class Squared(ScoreMap):
    """A map of a user's own, whose derivative is not 1 at 0."""

    def __call__(self, scores: jax.Array, /) -> jax.Array:
        return scores + 0.3 * scores**2


def plain(
    query: jax.Array,
    key: jax.Array,
    value: jax.Array,
    sinks: jax.Array | None,
    call: dict[str, Any],
    score_map: Callable[[jax.Array], jax.Array],
) -> jax.Array:
    """Computes attention with one more column of scores for the sinks, as gpt-oss writes it."""
    batch, length, heads, width = query.shape
    key, value = (jnp.repeat(array, heads // key.shape[2], axis=2) for array in (key, value))
    scores = score_map(jnp.einsum("bshd,bthd->bhst", query, key) / width**0.5)
    places = call["q_positions_BS"]
    allowed = call["mask"].allowed(places[:, :, None], places[:, None, :])
    if call["q_segment_ids_BS"] is not None:
        segments = call["q_segment_ids_BS"]
        allowed &= (segments[:, :, None] == segments[:, None]) & (segments != 0)[:, :, None]
    scores = jnp.where(allowed[:, None], scores, -1e30)
    logits = jnp.full(heads, -1e30) if sinks is None else sinks
    column = jnp.broadcast_to(logits[:, None, None], (batch, heads, length, 1))
    shares = jax.nn.softmax(jnp.concatenate([scores, column], axis=-1), axis=-1)[..., :-1]
    shares = jnp.where(allowed[:, None], shares, 0)
    return jnp.einsum("bhst,bthw->bshw", shares, value)


def results(function: Callable[..., jax.Array], inputs: tuple[Any, ...]) -> list[np.ndarray]:
    """Returns the output of a function and the gradients of all its inputs."""

    def compute(*inputs: Any) -> Any:
        mixed, pull = jax.vjp(function, *inputs)
        return mixed, pull(jnp.cos(mixed.astype(jnp.float32)).astype(mixed.dtype))

    return [np.asarray(leaf) for leaf in jax.tree.leaves(jax.jit(compute)(*inputs))]


def ours(name: str, call: dict[str, Any], score_map: ScoreMap | None) -> Callable[..., jax.Array]:
    """Returns an implementation as a function of queries, keys, values and sinks."""

    def run(query: jax.Array, key: jax.Array, value: jax.Array, sinks: Any) -> jax.Array:
        with prefer(attention=name):
            return attention(query, key, value, **call, score_map=score_map, sinks_H=sinks)

    return run


def assert_same(got: list[np.ndarray], expected: list[np.ndarray], tolerance: float) -> None:
    for one, other in zip(got, expected, strict=True):
        assert one.shape == other.shape
        assert np.isfinite(np.asarray(one, np.float32)).all()
        # Gradients are sums of many terms: what counts is their error against the largest.
        scale = tolerance * max(1.0, float(np.abs(np.asarray(other, np.float32)).max()))
        np.testing.assert_allclose(
            np.asarray(one, np.float32), np.asarray(other, np.float32), rtol=0, atol=scale
        )


@pytest.mark.parametrize("name", ["reference", "blockwise"])
@pytest.mark.parametrize(
    ("mask", "kv_heads", "is_packed", "score_map", "has_sinks", "value_width"),
    [
        (Causal(), 2, True, SoftCap(2.0), False, 8),
        (Causal(), 4, False, None, True, 8),
        (Causal(), 1, True, None, False, 5),
        (SlidingWindow(30), 2, True, SoftCap(1.5), True, 12),
        (SlidingWindow(30), 4, False, Squared(), True, 8),
        (Full(), 2, True, Squared(), False, 3),
        (Full(), 1, False, SoftCap(3.0), True, 16),
    ],
    ids=str,
)
def test_it_agrees_with_the_plain_formula(
    name: str,
    mask: Mask,
    kv_heads: int,
    is_packed: bool,
    score_map: ScoreMap | None,
    has_sinks: bool,
    value_width: int,
) -> None:
    call = aligned_call(mask, 2, 140, is_packed)
    inputs = arrays(2, 140, 140, 4, kv_heads, 8, value_width=value_width)
    inputs = (*inputs, jnp.asarray(SINKS) if has_sinks else None)
    formula = partial(plain, call=call, score_map=score_map or (lambda scores: scores))
    got = results(ours(name, call, score_map), inputs)
    assert got[0].shape == (2, 140, 4, value_width)
    assert len(got) == 1 + 3 + has_sinks, "sinks have a gradient of their own"
    assert_same(got, results(formula, inputs), 2e-5)


@pytest.mark.parametrize("name", ["reference", "blockwise"])
def test_half_precision_agrees_within_its_precision(name: str) -> None:
    call = aligned_call(Causal(), 2, 128, is_packed=True)
    inputs = (*arrays(2, 128, 128, 4, 2, 16, "bfloat16", 8), jnp.asarray(SINKS, "bfloat16"))
    got = results(ours(name, call, SoftCap(3.0)), inputs)
    assert all(array.dtype == jnp.bfloat16 for array in got), "gradients keep the dtypes"
    exact = tuple(np.asarray(array, np.float32) for array in inputs)
    expected = results(partial(plain, call=call, score_map=SoftCap(3.0)), exact)
    assert_same(got, expected, 0.02)


@pytest.mark.parametrize("name", ["reference", "blockwise"])
def test_queries_that_see_no_key_get_zeros_also_with_sinks(name: str) -> None:
    call = aligned_call(Causal(), 2, 128, is_packed=False)
    segments = jnp.asarray([[0] * 128, [1] * 100 + [0] * 28])
    call |= {"q_segment_ids_BS": segments, "kv_segment_ids_BT": segments}
    inputs = (*arrays(2, 128, 128, 4, 2, 8), jnp.asarray(SINKS))
    mixed, *gradients, by_sinks = results(ours(name, call, SoftCap(2.0)), inputs)
    for array in (mixed, *gradients):
        assert np.isfinite(array).all()
        assert not array[0].any()
        assert not array[1, 100:].any()
    # So only the second row has a say in the gradient of the sinks.
    alone = tuple(np.asarray(array)[1:, :100] for array in inputs[:3])
    formula = partial(plain, call=aligned_call(Causal(), 1, 100, False), score_map=SoftCap(2.0))
    assert_same([by_sinks], results(formula, (*alone, SINKS))[-1:], 2e-5)


@pytest.mark.parametrize("name", ["reference", "blockwise"])
def test_extreme_sinks_take_all_or_nothing(name: str) -> None:
    call = aligned_call(Causal(), 1, 128, is_packed=False)
    inputs = arrays(1, 128, 128, 4, 2, 8)
    sinks = jnp.asarray([1e4, -1e4, 1e30, -jnp.inf])
    mixed, *gradients = results(ours(name, call, None), (*inputs, sinks))
    without = results(ours(name, call, None), (*inputs, None))[0]
    assert not mixed[:, :, [0, 2]].any()
    np.testing.assert_allclose(mixed[:, :, [1, 3]], without[:, :, [1, 3]], atol=1e-6)
    assert all(np.isfinite(gradient).all() for gradient in gradients)


def test_nothing_quadratic_is_kept_between_the_passes() -> None:
    call = aligned_call(Causal(), 1, 512, is_packed=False)
    inputs = (*arrays(1, 512, 512, 4, 2, 8, value_width=6), jnp.asarray(SINKS))

    def kept(*inputs: jax.Array) -> Any:
        return jax.vjp(ours("blockwise", call, SoftCap(2.0)), *inputs)[1]

    sizes = [leaf.size for leaf in jax.tree.leaves(jax.eval_shape(kept, *inputs))]
    assert max(sizes) <= inputs[0].size


def test_sharded_equals_unsharded() -> None:
    call = aligned_call(Causal(), 4, 128, is_packed=True)
    inputs = (*arrays(4, 128, 128, 4, 2, 8, value_width=6), jnp.asarray(SINKS))
    mesh = MeshLayout.Config(data=2, fsdp=2, model=2).build().mesh()
    by_head = NamedSharding(mesh, PartitionSpec(("data", "fsdp"), None, "model"))
    sinks_by_head = NamedSharding(mesh, PartitionSpec("model"))
    shardings = (by_head, by_head, by_head, sinks_by_head)
    placed = tuple(map(jax.device_put, inputs, shardings))
    function = ours("blockwise", call, SoftCap(2.0))
    assert_same(results(function, placed), results(function, inputs), 1e-5)
