"""One forward: what a model computes token by token is what it computes all at once."""

import functools
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dovetail.config import Config, ConfigError, config_for, select
from dovetail.generate import Generator, with_memory
from dovetail.kernels.attention import Prefix, SlidingWindow
from dovetail.layers import Attention, NoMemory, Places
from dovetail.layers.moe import Capacity, Dropless
from dovetail.module import functional, initialize, parameter_specs, variable_specs
from tests.generate.sweep import (
    LAYERS,
    LENGTH,
    MEMORIES,
    MODELS,
    VOCABULARY,
    WIDTH,
    with_experts,
)

LENGTHS = (11, 1, 7)  # ragged
STEPS = 12
CUTS = {"two pieces": (6, 6), "a prompt, then one by one": (6, *(1,) * 6)}


def ragged_places(lengths: Sequence[int] = LENGTHS, steps: int = STEPS) -> Places:
    index = jnp.broadcast_to(jnp.arange(steps), (len(lengths), steps))
    return Places(index, (index < jnp.asarray(lengths)[:, None]).astype(jnp.int32))


def variables_of(config: Config[Any]) -> dict[str, Any]:
    """Values for every variable, as a trained model would have some."""
    random = np.random.default_rng(0)
    specs = variable_specs(config.build())
    return {path: jnp.asarray(random.normal(0, 0.1, s.shape), s.dtype) for path, s in specs.items()}


def in_pieces(run: Any, x: jax.Array, places: Places, cuts: Sequence[int]) -> np.ndarray:
    """Runs a layer on one piece of the sequence after the other, with what it remembers."""
    results, cache, start = [], {}, 0
    for size in cuts:
        piece = slice(start, start + size)
        here = Places(places.positions_BS[:, piece], places.segments_BS[:, piece])
        result, cache = run(x[:, piece], here, cache)
        results.append(result)
        start += size
    assert cache, "nothing was remembered"
    return np.concatenate(results, axis=1)


@pytest.mark.parametrize("memory", MEMORIES)
@pytest.mark.parametrize("name", LAYERS)
def test_a_layer_in_pieces_equals_the_layer_at_once(name: str, memory: str) -> None:
    config = LAYERS[name].clone(width=WIDTH)
    params = initialize(config.build(), jax.random.key(0))
    x = jax.random.normal(jax.random.key(1), (len(LENGTHS), STEPS, WIDTH))
    places = ragged_places()
    variables = variables_of(config)
    at_once = jax.jit(
        lambda x: functional(config.build(), params, (x, places), variables=variables)[0]
    )
    expected = at_once(x)
    remembering = with_memory(config, LENGTH, MEMORIES[memory]).build()

    @jax.jit
    def run(x: jax.Array, places: Places, cache: dict[str, Any]) -> Any:
        result, outputs = functional(
            remembering, params, (x, places), variables=variables_of(config), cache=cache
        )
        return result, outputs.cache

    real = np.asarray(places.segments_BS, bool)
    for cuts in CUTS.values():
        got = in_pieces(run, x, places, cuts)
        np.testing.assert_allclose(got[real], np.asarray(expected)[real], atol=1e-5)


class Decoding:
    """A model with memory, asked for logits as the generator asks."""

    def __init__(self, config: Config[Any], memory: Config[Any], params: Mapping[str, Any]) -> None:
        self.model = with_memory(config, LENGTH, memory).build()
        self.params, self.cache = params, {}
        self._run = jax.jit(self._pure)

    def _pure(self, cache: Any, tokens: jax.Array, places: Places, last: jax.Array) -> Any:
        result, outputs = functional(
            self.model,
            self.params,
            (tokens, places, last),
            variables=variables_of(self.model.config),
            cache=cache,
            method="logits",
        )
        return result, outputs.cache

    def __call__(self, tokens: Any, positions: Any, segments: Any, last: Any) -> np.ndarray:
        places = Places(jnp.asarray(positions), jnp.asarray(segments))
        result, self.cache = self._run(self.cache, jnp.asarray(tokens), places, jnp.asarray(last))
        return np.asarray(result)


class Trained:
    """A model as it is trained, which computes all logits at once; the tokens are [3, 32]."""

    def __init__(self, name: str, dtype: str) -> None:
        self.config = MODELS[name].clone(dtype=dtype)
        self.model = self.config.build()
        self.params = initialize(self.model, jax.random.key(0))
        places = ragged_places([32] * 3, 32)
        self._run = jax.jit(
            lambda tokens: functional(
                self.model,
                self.params,
                (tokens, places),
                variables=variables_of(self.config),
                method="all_logits",
            )[0]
        )

    def all_logits(self, tokens: np.ndarray) -> np.ndarray:
        return np.asarray(self._run(jnp.asarray(tokens)))


trained = functools.cache(Trained)


def decoded_logits(config: Config[Any], memory: Config[Any], params: Any, tokens: Any) -> Any:
    """Reads a ragged prompt of each row, then the rest one by one, each at a place of its own.

    Yields pairs of the position in each row and the logits there.
    """
    decoding = Decoding(config, memory, params)
    rows, lengths = np.arange(len(tokens)), np.asarray([5, 2, 7])
    places = ragged_places(lengths.tolist(), 8)
    prompt = tokens[:, :8] * np.asarray(places.segments_BS)
    yield lengths - 1, decoding(prompt, places.positions_BS, places.segments_BS, lengths - 1)
    for offset in range(6):
        position = lengths + offset
        newest, ones = tokens[rows, position][:, None], np.ones((len(rows), 1), np.int32)
        yield position, decoding(newest, position[:, None], ones, np.zeros(len(rows), np.int32))


def some_tokens() -> np.ndarray:
    return np.random.default_rng(0).integers(0, VOCABULARY, (3, 32)).astype(np.int32)


@pytest.mark.parametrize("memory", MEMORIES)
@pytest.mark.parametrize(
    ("name", "dtype", "tolerance"),
    [*((name, "float32", 1e-5) for name in MODELS), ("grouped, tied", "bfloat16", 4e-2)],
)
def test_a_model_decodes_the_logits_it_trains_on(
    name: str, dtype: str, tolerance: float, memory: str
) -> None:
    model, tokens = trained(name, dtype), some_tokens()
    expected, rows = model.all_logits(tokens), np.arange(3)
    for position, got in decoded_logits(model.config, MEMORIES[memory], model.params, tokens):
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


def test_with_memory_leaves_parameters_and_its_argument_alone() -> None:
    config = MODELS["hybrid"]
    remembering = with_memory(config, 24)
    assert len(select(config, NoMemory)) == 2
    assert not len(select(remembering, NoMemory))
    specs, same = parameter_specs(config.build()), parameter_specs(remembering.build())
    assert {path: spec.shape for path, spec in specs.items()} == {
        path: spec.shape for path, spec in same.items()
    }


def test_what_depends_on_other_tokens_decodes_in_another_form() -> None:
    tight = with_experts(MODELS["llama"], dispatch=Capacity.Config(factor=0.25))
    decoding = with_memory(tight, 24)
    assert len(select(tight, Capacity)) == 1
    assert (len(select(decoding, Capacity)), len(select(decoding, Dropless))) == (0, 1)
    roomy = with_experts(MODELS["llama"])
    assert parameter_specs(decoding.build()).keys() == parameter_specs(roomy.build()).keys()
    assert decoding == with_memory(roomy, 24)


def test_with_memory_says_what_is_missing() -> None:
    once = with_memory(MODELS["llama"], 24)
    with pytest.raises(ConfigError, match="no NoMemory in this config"):
        with_memory(once, 24)
    with pytest.raises(ConfigError, match="at least 1 token, got 0"):
        with_memory(MODELS["llama"], 0)


def test_with_memory_refuses_a_mask_that_looks_ahead() -> None:
    ahead = select(MODELS["llama"], Attention).set(mask=config_for(Prefix, length=4))
    with pytest.raises(
        ConfigError, match=r"attention\.mask: Prefix\(length=4\) lets tokens see later"
    ):
        with_memory(ahead, 24)
    window = select(MODELS["llama"], Attention).set(mask=config_for(SlidingWindow, window=4))
    with_memory(window, 24)
