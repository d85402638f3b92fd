"""States: kept from call to call, left alone by padding, forgotten where a sequence begins."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dovetail.config import Config, select
from dovetail.generate import with_kv_cache
from dovetail.layers import TokenContext
from dovetail.layers.recurrent.state_cache import (
    NoStateCache,
    RecurrentStateCache,
    SequenceBoundaries,
)
from dovetail.module import functional
from tests.layers.cases import BATCH, WIDTH, gated_delta, mamba, random_params, vectors
from tests.layers.recurrent.recurrences import packed

LAYERS: dict[str, Config[Any]] = {"mamba2": mamba(), "gated delta": gated_delta()}
every_layer = pytest.mark.parametrize("name", LAYERS)


class Decoding:
    """A layer with a state cache, called with chunks of a sequence."""

    def __init__(self, config: Config[Any], contiguous: bool = False) -> None:
        self.contiguous = contiguous
        self.params = random_params(config.build())
        module = with_kv_cache(config, 8).build()
        self._run = jax.jit(lambda p, i, cache: functional(module, p, i, cache=cache))
        self.cache: Any = {}

    def __call__(self, x: jax.Array, positions: Any, segments: Any) -> np.ndarray:
        shape = x.shape[:2]
        context = TokenContext(
            *(jnp.broadcast_to(jnp.array(a), shape) for a in (positions, segments))
        )
        context = context.promise_contiguous() if self.contiguous else context
        result, outputs = self._run(self.params, (x, context), self.cache)
        self.cache = outputs.cache
        return np.asarray(result)


def close(actual: Any, expected: Any) -> None:
    np.testing.assert_allclose(actual, expected, rtol=1e-4, atol=1e-5)


@every_layer
def test_a_state_cache_has_the_same_size_for_any_length(name: str) -> None:
    config = LAYERS[name].clone(width=WIDTH)
    assert with_kv_cache(config, 8) == with_kv_cache(config, 8000)
    assert not select(with_kv_cache(config, 8), NoStateCache).found
    assert len(select(with_kv_cache(config, 8), RecurrentStateCache)) == 2


@every_layer
@pytest.mark.parametrize("contiguous", [True, False])
def test_padding_leaves_the_state_as_it_is(name: str, contiguous: bool) -> None:
    decoding, x = Decoding(LAYERS[name].clone(width=WIDTH), contiguous), vectors()
    whole = decoding(x, range(6), [1] * 6)
    decoding.cache = {}
    close(decoding(x[:, [0, 1, 2, 5, 5, 5]], range(6), [1, 1, 1, 0, 0, 0])[:, :3], whole[:, :3])
    kept = decoding.cache
    decoding(x[:, :1], [3], [0])  # a row that is done
    jax.tree.map(np.testing.assert_array_equal, kept, decoding.cache)
    close(decoding(x[:, 3:4], [3], [1]), whole[:, 3:4])
    close(decoding(x[:, [4, 5, 0]], [4, 5, 6], [1, 1, 0])[:, :2], whole[:, 4:])


@every_layer
@pytest.mark.parametrize("contiguous", [True, False])
def test_padding_may_stand_before_a_prompt(name: str, contiguous: bool) -> None:
    decoding, x = Decoding(LAYERS[name].clone(width=WIDTH), contiguous), vectors()
    whole = decoding(x, range(6), [1] * 6)
    decoding.cache = {}
    padded = decoding(x[:, [5, 4, 0, 1, 2, 3]], [0, 0, 0, 1, 2, 3], [0, 0, 1, 1, 1, 1])
    close(padded[:, 2:], whole[:, :4])
    close(decoding(x[:, 4:], [4, 5], [1, 1]), whole[:, 4:])


@every_layer
@pytest.mark.parametrize("cuts", [(6,), (3, 3), (1,) * 6])
def test_padding_may_interrupt_a_sequence(name: str, cuts: tuple[int, ...]) -> None:
    """Tokens that are hidden from the layer are as if they were not there."""
    decoding, x = Decoding(LAYERS[name].clone(width=WIDTH)), vectors()
    segments = np.array([1, 0, 1, 1, 0, 1])
    shorter = decoding(x[:, segments > 0], range(4), [1] * 4)
    decoding.cache = {}
    results, start = [], 0
    for size in cuts:
        span = slice(start, start + size)
        results.append(decoding(x[:, span], np.arange(6)[span], segments[span]))
        start += size
    close(np.concatenate(results, axis=1)[:, segments > 0], shorter)


@every_layer
def test_position_0_begins_anew(name: str) -> None:
    decoding, x = Decoding(LAYERS[name].clone(width=WIDTH)), vectors()
    first = decoding(x, range(6), [1] * 6)
    other = vectors(4, BATCH, 3, WIDTH)
    decoding(other, range(3), [1] * 3)
    close(decoding(x[:, :4], range(4), [1] * 4), first[:, :4])
    close(decoding(x[:, 4:], [4, 5], [1, 1]), first[:, 4:])


@every_layer
def test_the_cached_state_is_of_the_last_sequence_of_a_row(name: str) -> None:
    decoding, x = Decoding(LAYERS[name].clone(width=WIDTH)), vectors()
    alone = decoding(x[:, 3:], range(3), [1] * 3)
    decoding.cache = {}
    both = decoding(x[:, :5], [0, 1, 2, 0, 1], [1, 1, 1, 2, 2])
    close(both[:, 3:], alone[:, :2])
    close(decoding(x[:, 5:], [2], [2]), alone[:, 2:])


def test_where_sequences_begin() -> None:
    boundaries = SequenceBoundaries.of(packed())
    starts = [np.flatnonzero(row).tolist() for row in np.asarray(boundaries.starts_BS)]
    assert starts == [[0], [0, 3, 4], [2, 5], [0, 4, 8]]


def test_a_segment_begins_without_position_0() -> None:
    context = TokenContext(jnp.array([[3, 4, 5, 6, 7]]), jnp.array([[1, 1, 0, 2, 2]]))
    assert SequenceBoundaries.of(context).starts_BS.tolist() == [[False, False, False, True, False]]
