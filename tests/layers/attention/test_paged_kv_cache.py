"""The paged KV cache: any block table gives what one pass over the sequence gives."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dovetail.config import Config, ConfigError
from dovetail.generate import with_kv_cache
from dovetail.layers import TokenContext
from dovetail.layers.attention.paged_kv_cache import BLOCK_TABLE, PagedKVCache
from dovetail.models.llama import llama
from dovetail.module import functional, initialize
from tests.generate.sweep import MIXERS, WIDTH
from tests.layers import cases
from tests.layers.attention.test_kv_cache import Skipping

ROWS, STEPS, BLOCK, POOL = 3, 12, 4, 11
LENGTHS = np.array([11, 1, 7])
# The rows' blocks lie in any order in the pool, and a row has only those that it needs.
TABLE = np.array([[7, 2, 9], [4, -1, -1], [0, 10, -1]])
CACHE = PagedKVCache.Config(block_size=BLOCK, num_blocks=POOL)


def ragged() -> TokenContext:
    index = jnp.broadcast_to(jnp.arange(STEPS), (ROWS, STEPS))
    return TokenContext(index, (index < LENGTHS[:, None]).astype(jnp.int32))


def in_chunks(
    run: Any, x: jax.Array, table: np.ndarray, cuts: tuple[int, ...], contiguous: bool = False
) -> Any:
    """Runs one chunk after the other; returns the results together, and the last cache."""
    results, cache, start, context = [], {}, 0, ragged()
    for size in cuts:
        chunk = slice(start, start + size)
        here = TokenContext(context.positions_BS[:, chunk], context.segment_ids_BS[:, chunk])
        here = here.promise_contiguous() if contiguous else here
        result, cache = run(x[:, chunk], here.provide(BLOCK_TABLE, jnp.asarray(table)), cache)
        results.append(result)
        start += size
    return np.concatenate(results, axis=1), cache


def decoding(config: Config[Any], params: Any) -> Any:
    """Returns a call of the layer with a paged KV cache."""
    module = with_kv_cache(config, STEPS, CACHE).build()

    @jax.jit
    def run(x: jax.Array, context: TokenContext, cache: dict[str, Any]) -> Any:
        result, outputs = functional(module, params, (x, context), cache=cache)
        return result, outputs.cache

    return run


@pytest.mark.parametrize("cuts", [(6, *(1,) * 6), (5, 4, 3)])
@pytest.mark.parametrize("name", ["grouped", "sliding window", "differential", "latent"])
def test_a_layer_step_by_step_equals_the_layer_at_once(name: str, cuts: tuple[int, ...]) -> None:
    config = MIXERS[name].clone(width=WIDTH)
    params = initialize(config.build(), jax.random.key(0))
    x = jax.random.normal(jax.random.key(1), (ROWS, STEPS, WIDTH))
    expected = functional(config.build(), params, (x, ragged()))[0]
    got, cache = in_chunks(decoding(config, params), x, TABLE, cuts, contiguous=True)
    real = np.asarray(ragged().segment_ids_BS, bool)
    np.testing.assert_allclose(got[real], np.asarray(expected)[real], atol=2e-5)
    assert {leaf.shape[:2] for leaf in jax.tree.leaves(cache)} == {(POOL, BLOCK)}


def test_tokens_that_skip_a_layer_are_not_attended_to() -> None:
    config = Skipping.Config()
    params = initialize(config.build(), jax.random.key(0))
    x = jax.random.normal(jax.random.key(1), (ROWS, STEPS, cases.WIDTH))
    expected = functional(config.build(), params, (x, ragged()))[0]
    got, _ = in_chunks(decoding(config, params), x, TABLE, (6, *(1,) * 6))
    real = np.asarray(ragged().segment_ids_BS, bool)
    np.testing.assert_allclose(got[real], np.asarray(expected)[real], atol=2e-5)


def test_all_layers_of_a_model_share_one_block_table() -> None:
    """The table is an argument of the call; the cache has one pool per layer, and no table."""
    config = llama(width=16, num_layers=3, num_heads=2, hidden=32, tied=True).set(vocab_size=50)
    params = initialize(config.build(), jax.random.key(0))
    tokens = jax.random.randint(jax.random.key(1), (ROWS, STEPS), 0, 50)
    expected = functional(config.build(), params, (tokens, ragged()), method="all_logits")[0]
    module = with_kv_cache(config, STEPS, CACHE).build()

    @jax.jit
    def run(tokens: jax.Array, context: TokenContext, cache: dict[str, Any]) -> Any:
        logits, outputs = functional(
            module, params, (tokens, context), cache=cache, method="all_logits"
        )
        return logits, outputs.cache

    got, cache = in_chunks(run, tokens, TABLE, (6, *(1,) * 6), contiguous=True)
    real = np.asarray(ragged().segment_ids_BS, bool)
    np.testing.assert_allclose(got[real], np.asarray(expected)[real], atol=2e-5)
    assert {path.rpartition("/")[2] for path in cache} == {"keys", "values"}
    assert {leaf.shape[:3] for leaf in jax.tree.leaves(cache)} == {(3, POOL, BLOCK)}


def test_a_block_may_move_between_calls() -> None:
    """As when a pool is compacted, or a sequence is swapped out and in again."""
    config = MIXERS["grouped"].clone(width=WIDTH)
    params = initialize(config.build(), jax.random.key(0))
    run = decoding(config, params)
    x = jax.random.normal(jax.random.key(1), (ROWS, STEPS, WIDTH))
    expected, _ = in_chunks(run, x, TABLE, (6, 6), contiguous=True)
    first, cache = in_chunks(run, x[:, :6], TABLE, (6,), contiguous=True)
    order = np.roll(np.arange(POOL), 3)  # block i is now where order has it
    cache = jax.tree.map(lambda pool: pool[order], cache)
    moved = np.where(TABLE < 0, -1, np.argsort(order)[TABLE])
    here = ragged()
    rest = TokenContext(here.positions_BS[:, 6:], here.segment_ids_BS[:, 6:]).promise_contiguous()
    second, _ = run(x[:, 6:], rest.provide(BLOCK_TABLE, jnp.asarray(moved)), cache)
    np.testing.assert_allclose(np.concatenate([first, second], axis=1), expected, atol=1e-6)


def test_a_missing_block_table_is_named() -> None:
    module = with_kv_cache(MIXERS["grouped"].clone(width=WIDTH), STEPS, CACHE).build()
    params = initialize(module, jax.random.key(0))
    with pytest.raises(ConfigError, match="asks for the input 'block_table', which nobody"):
        functional(module, params, (jnp.zeros((ROWS, STEPS, WIDTH)), ragged()))
