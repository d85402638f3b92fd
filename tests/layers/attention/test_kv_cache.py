"""KV caches: slots, padding, and masks that they refuse."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dovetail.config import ConfigError, config_for
from dovetail.generate import with_kv_cache
from dovetail.kernels.attention import Full, SlidingWindow
from dovetail.layers import Attention, ContiguousKVCache, NoKVCache, TokenContext
from dovetail.module import Module, functional
from tests.layers.cases import WIDTH, attention, mixing, random_params

LENGTH = 5


def write(cache: object, value: float, positions: list[int], segments: list[int]) -> dict:
    """Writes tokens that are all one value, and returns the cache."""
    module = ContiguousKVCache.Config(length=LENGTH).build()
    new = jnp.full((1, len(positions), 1, 2), value)
    context = TokenContext(jnp.array([positions]), jnp.array([segments]))
    outputs = functional(module, {}, (new, -new, context), cache=cache)[1]
    assert outputs.cache is not None
    return outputs.cache


def test_tokens_are_cached_at_their_positions() -> None:
    cache = write(None, 1.0, [0, 1], [1, 1])
    cache = write(cache, 2.0, [2], [1])
    np.testing.assert_array_equal(cache["keys"][0, :, 0, 0], [1, 1, 2, 0, 0])
    np.testing.assert_array_equal(cache["values"][0, :, 0, 1], [-1, -1, -2, 0, 0])


def test_padding_is_not_written() -> None:
    cache = write(None, 1.0, [0, 1, 2], [1, 1, 1])
    cache = write(cache, 2.0, [3, 0], [1, 0])
    np.testing.assert_array_equal(cache["keys"][0, :, 0, 0], [1, 1, 1, 2, 0])


def test_what_does_not_fit_overwrites_nothing() -> None:
    cache = write(None, 1.0, [0, 1, 2, 3, 4, 5], [1] * 6)
    np.testing.assert_array_equal(cache["keys"][0, :, 0, 0], [1] * LENGTH)


def test_no_kv_cache_stores_nothing() -> None:
    new = jnp.ones((1, 2, 1, 2))
    context = TokenContext(jnp.array([[0, 1]]), jnp.array([[1, 1]]))
    assert functional(NoKVCache.Config().build(), {}, (new, new, context))[1].cache == {}


def test_a_cache_holds_at_least_one_token() -> None:
    config = attention().set(width=WIDTH, cache=ContiguousKVCache.Config(length=0))
    with pytest.raises(ConfigError) as caught:
        config.build()
    assert str(caught.value) == "cache.length: expected 1 or more, got 0."


def decode(config: Attention.Config) -> jax.Array:
    """Runs attention with a KV cache: a prefill of all but the last token, then a decode step."""
    module = config.build()
    params, (x, context) = random_params(module), mixing()
    first, last = (
        (x[:, span], TokenContext(context.positions_BS[:, span], context.segment_ids_BS[:, span]))
        for span in (slice(None, -1), slice(-1, None))
    )
    step = jax.jit(lambda *inputs, cache: functional(module, *inputs, cache=cache))
    cache = step(params, first, cache=None)[1].cache
    return step(params, last, cache=cache)[0]


class Skipping(Module):
    """Attention that every third token skips, as in mixture-of-depths."""

    class Config(Module.Config["Skipping"]):
        attention: Attention.Config = attention().set(width=WIDTH)

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self.attention = config.attention.build()

    def __call__(self, x_BSE: jax.Array, context: TokenContext) -> jax.Array:
        skips_BS = context.positions_BS % 3 == 1
        output_BSE = self.attention(x_BSE, context.hide(skips_BS))
        return jnp.where(skips_BS[..., None], x_BSE, x_BSE + output_BSE)


@pytest.mark.parametrize("contiguous", [True, False])
@pytest.mark.parametrize("cuts", [(6,), (3, 3), (2, 1, 1, 1, 1), (1,) * 6])
def test_tokens_that_skip_a_layer_are_not_attended_to(
    cuts: tuple[int, ...], contiguous: bool
) -> None:
    config = Skipping.Config()
    params, (x, context) = random_params(config.build()), mixing()
    whole = functional(config.build(), params, (x, context))[0]
    module = with_kv_cache(config, 8).build()
    cache, results, start = None, [], 0
    for size in cuts:
        span = slice(start, start + size)
        here = TokenContext(context.positions_BS[:, span], context.segment_ids_BS[:, span])
        here = here.promise_contiguous() if contiguous else here
        result, outputs = functional(module, params, (x[:, span], here), cache=cache)
        results.append(result)
        cache, start = outputs.cache, start + size
    np.testing.assert_allclose(np.concatenate(results, axis=1), whole, rtol=1e-5, atol=1e-5)


def test_a_cache_that_does_not_know_its_written_slots_refuses_hidden_tokens() -> None:
    module = attention().set(width=WIDTH, cache=ContiguousKVCache.Config(length=8)).build()
    params, (x, context) = random_params(module), mixing()
    first = TokenContext(context.positions_BS[:, :2], context.segment_ids_BS[:, :2])
    cache = functional(module, params, (x[:, :2], first.promise_contiguous()))[1].cache
    assert set(cache or {}) == {"cache/keys", "cache/values"}
    second = TokenContext(context.positions_BS[:, 2:3], context.segment_ids_BS[:, 2:3])
    functional(module, params, (x[:, 2:3], second.promise_contiguous()), cache=cache)
    hidden = second.hide(jnp.zeros_like(second.positions_BS, bool))
    with pytest.raises(ConfigError) as caught:
        functional(module, params, (x[:, 2:3], hidden), cache=cache)
    assert str(caught.value) == (
        "cache: a layer hides tokens from this ContiguousKVCache, which does not know which of its "
        "slots are written, because its first call had a contiguous context. Hide tokens from the "
        "first call on (`context.hide`), or from none."
    )


def test_a_cache_with_a_sliding_window() -> None:
    windowed = attention().set(width=WIDTH, mask=config_for(SlidingWindow, window=2))
    whole = functional(windowed.build(), random_params(windowed.build()), mixing())[0]
    last = decode(windowed.set(cache=ContiguousKVCache.Config(length=8)))
    np.testing.assert_allclose(last[:, 0], whole[:, -1], rtol=1e-5, atol=1e-5)


def test_a_cache_needs_a_causal_mask() -> None:
    config = attention().set(width=WIDTH, cache=ContiguousKVCache.Config(length=8))
    with pytest.raises(ConfigError) as caught:
        decode(config.set(mask=config_for(Full)))
    assert str(caught.value) == (
        "mask: Full() attends to later tokens, which a KV cache does not hold yet. "
        "Decode with a causal mask, or run the whole sequence at once without a KV cache."
    )
