"""One forward: decoding token by token computes what a single pass computes."""

import functools
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dovetail.config import Config, ConfigError, config_for, select
from dovetail.generate import Generator, with_kv_cache
from dovetail.kernels.attention import Prefix, SlidingWindow
from dovetail.layers import Attention, NoKVCache, TokenContext
from dovetail.layers.moe import Capacity, Dropless
from dovetail.module import functional, initialize, parameter_specs, variable_specs
from tests.generate.sweep import (
    CACHES,
    LAYERS,
    LENGTH,
    MODELS,
    VOCABULARY,
    WIDTH,
    with_experts,
)

LENGTHS = (11, 1, 7)  # ragged
STEPS = 12
CUTS = {"two chunks": (6, 6), "a prompt, then one by one": (6, *(1,) * 6)}


def ragged_context(lengths: Sequence[int] = LENGTHS, steps: int = STEPS) -> TokenContext:
    index = jnp.broadcast_to(jnp.arange(steps), (len(lengths), steps))
    return TokenContext(index, (index < jnp.asarray(lengths)[:, None]).astype(jnp.int32))


def variables_of(config: Config[Any]) -> dict[str, Any]:
    """Values for every variable, as a trained model would have some."""
    random = np.random.default_rng(0)
    specs = variable_specs(config.build())
    return {path: jnp.asarray(random.normal(0, 0.1, s.shape), s.dtype) for path, s in specs.items()}


def in_chunks(run: Any, x: jax.Array, context: TokenContext, cuts: Sequence[int]) -> np.ndarray:
    """Runs a layer on one chunk of the sequence after the other, carrying its cache."""
    results, cache, start = [], {}, 0
    for size in cuts:
        chunk = slice(start, start + size)
        here = TokenContext(context.positions_BS[:, chunk], context.segment_ids_BS[:, chunk])
        result, cache = run(x[:, chunk], here, cache)
        results.append(result)
        start += size
    assert cache, "nothing was cached"
    return np.concatenate(results, axis=1)


@pytest.mark.parametrize("cache", CACHES)
@pytest.mark.parametrize("name", LAYERS)
def test_a_layer_in_chunks_equals_the_layer_at_once(name: str, cache: str) -> None:
    config = LAYERS[name].clone(width=WIDTH)
    params = initialize(config.build(), jax.random.key(0))
    x = jax.random.normal(jax.random.key(1), (len(LENGTHS), STEPS, WIDTH))
    context = ragged_context()
    variables = variables_of(config)
    at_once = jax.jit(
        lambda x: functional(config.build(), params, (x, context), variables=variables)[0]
    )
    expected = at_once(x)
    decoding = with_kv_cache(config, LENGTH, CACHES[cache]).build()

    @jax.jit
    def run(x: jax.Array, context: TokenContext, cache: dict[str, Any]) -> Any:
        result, outputs = functional(
            decoding, params, (x, context), variables=variables_of(config), cache=cache
        )
        return result, outputs.cache

    real = np.asarray(context.segment_ids_BS, bool)
    for cuts in CUTS.values():
        got = in_chunks(run, x, context, cuts)
        np.testing.assert_allclose(got[real], np.asarray(expected)[real], atol=1e-5)


class Decoding:
    """A model with a KV cache, called as the generator calls it."""

    def __init__(self, config: Config[Any], cache: Config[Any], params: Mapping[str, Any]) -> None:
        self.model = with_kv_cache(config, LENGTH, cache).build()
        self.params, self.cache = params, {}
        self._run = jax.jit(self._pure)

    def _pure(self, cache: Any, tokens: jax.Array, context: TokenContext, last: jax.Array) -> Any:
        result, outputs = functional(
            self.model,
            self.params,
            (tokens, context, last),
            variables=variables_of(self.model.config),
            cache=cache,
            method="logits",
        )
        return result, outputs.cache

    def __call__(self, tokens: Any, positions: Any, segments: Any, last: Any) -> np.ndarray:
        context = TokenContext(jnp.asarray(positions), jnp.asarray(segments))
        result, self.cache = self._run(self.cache, jnp.asarray(tokens), context, jnp.asarray(last))
        return np.asarray(result)


class Trained:
    """A model as it is trained, which computes all logits at once; the tokens are [3, 32]."""

    def __init__(self, name: str, dtype: str) -> None:
        self.config = MODELS[name].clone(dtype=dtype)
        self.model = self.config.build()
        self.params = initialize(self.model, jax.random.key(0))
        context = ragged_context([32] * 3, 32)
        self._run = jax.jit(
            lambda tokens: functional(
                self.model,
                self.params,
                (tokens, context),
                variables=variables_of(self.config),
                method="all_logits",
            )[0]
        )

    def all_logits(self, tokens: np.ndarray) -> np.ndarray:
        return np.asarray(self._run(jnp.asarray(tokens)))


trained = functools.cache(Trained)


def decoded_logits(config: Config[Any], cache: Config[Any], params: Any, tokens: Any) -> Any:
    """Reads a ragged prompt of each row, then the rest one by one, each at a place of its own.

    Yields pairs of the position in each row and the logits there.
    """
    decoding = Decoding(config, cache, params)
    rows, lengths = np.arange(len(tokens)), np.asarray([5, 2, 7])
    context = ragged_context(lengths.tolist(), 8)
    prompt = tokens[:, :8] * np.asarray(context.segment_ids_BS)
    yield lengths - 1, decoding(prompt, context.positions_BS, context.segment_ids_BS, lengths - 1)
    for offset in range(6):
        position = lengths + offset
        newest, ones = tokens[rows, position][:, None], np.ones((len(rows), 1), np.int32)
        yield position, decoding(newest, position[:, None], ones, np.zeros(len(rows), np.int32))


def some_tokens() -> np.ndarray:
    return np.random.default_rng(0).integers(0, VOCABULARY, (3, 32)).astype(np.int32)


@pytest.mark.parametrize("cache", CACHES)
@pytest.mark.parametrize(
    ("name", "dtype", "tolerance"),
    [*((name, "float32", 1e-5) for name in MODELS), ("grouped, tied", "bfloat16", 4e-2)],
)
def test_a_model_decodes_the_logits_it_trains_on(
    name: str, dtype: str, tolerance: float, cache: str
) -> None:
    model, tokens = trained(name, dtype), some_tokens()
    expected, rows = model.all_logits(tokens), np.arange(3)
    for position, got in decoded_logits(model.config, CACHES[cache], model.params, tokens):
        np.testing.assert_allclose(got, expected[rows, position], atol=tolerance)


@pytest.mark.parametrize("name", MODELS)
def test_greedy_generation_is_the_argmax_computed_from_scratch(name: str) -> None:
    model = trained(name, "float32")
    prompts = [[5, 9, 2, 40], [7], list(range(20))]
    generator = Generator(
        model.config, model.params, variables=variables_of(model.config), length=LENGTH
    )
    generations = generator.generate(prompts, max_new_tokens=8)
    sequences = [list(prompt) for prompt in prompts]
    for _ in range(8):
        padded = np.zeros((len(prompts), 32), np.int32)
        for row, sequence in enumerate(sequences):
            padded[row, : len(sequence)] = sequence
        logits = model.all_logits(padded)  # causal: what stands behind does not matter
        for row, sequence in enumerate(sequences):
            sequence.append(int(np.argmax(logits[row, len(sequence) - 1])))
    expected = [
        sequence[len(prompt) :] for sequence, prompt in zip(sequences, prompts, strict=True)
    ]
    assert [generation.tokens for generation in generations] == expected


def test_with_kv_cache_changes_neither_parameters_nor_its_argument() -> None:
    config = MODELS["hybrid"]
    decoding = with_kv_cache(config, 24)
    assert len(select(config, NoKVCache)) == 2
    assert not len(select(decoding, NoKVCache))
    specs, same = parameter_specs(config.build()), parameter_specs(decoding.build())
    assert {path: spec.shape for path, spec in specs.items()} == {
        path: spec.shape for path, spec in same.items()
    }


def test_what_depends_on_other_tokens_decodes_in_another_form() -> None:
    tight = with_experts(MODELS["llama"], dispatch=Capacity.Config(factor=0.25))
    decoding = with_kv_cache(tight, 24)
    assert len(select(tight, Capacity)) == 1
    assert (len(select(decoding, Capacity)), len(select(decoding, Dropless))) == (0, 1)
    roomy = with_experts(MODELS["llama"])
    assert parameter_specs(decoding.build()).keys() == parameter_specs(roomy.build()).keys()
    assert decoding == with_kv_cache(roomy, 24)


def test_with_kv_cache_says_what_is_missing() -> None:
    once = with_kv_cache(MODELS["llama"], 24)
    with pytest.raises(ConfigError, match="config has no NoKVCache"):
        with_kv_cache(once, 24)
    with pytest.raises(ConfigError, match="at least 1 token, got 0"):
        with_kv_cache(MODELS["llama"], 0)


def test_with_kv_cache_refuses_a_mask_that_is_not_causal() -> None:
    ahead = select(MODELS["llama"], Attention).set(mask=config_for(Prefix, length=4))
    with pytest.raises(
        ConfigError, match=r"attention\.mask: Prefix\(length=4\) lets tokens attend to later"
    ):
        with_kv_cache(ahead, 24)
    window = select(MODELS["llama"], Attention).set(mask=config_for(SlidingWindow, window=4))
    with_kv_cache(window, 24)
