"""Generator: stop conditions, streaming, seeds, few compilations, error messages."""

from typing import Any

import jax
import numpy as np
import pytest

from dovetail.config import ConfigError, replace
from dovetail.data.tokenizer import ByteTokenizer
from dovetail.generate import Generation, GenerationChunk, Generator, Greedy, Sampling
from dovetail.layers import Linear, TokenContext
from dovetail.models import CausalLM
from dovetail.module import initialize
from tests.generate.scripted import END, Bytes, says
from tests.generate.sweep import LENGTH, MIXERS, MODELS, VOCABULARY

SAMPLING = Sampling.Config(temperature=1.5, top_k=60, top_p=0.98)


def speaker(text: str, **options: Any) -> Generator:
    return Generator(says(text), {}, length=63, **{"tokenizer": Bytes(), **options})


@pytest.fixture(scope="module")
def generator() -> Generator:
    config = MODELS["grouped, tied"]
    return Generator(config, initialize(config.build(), jax.random.key(0)), length=LENGTH)


def joined(chunks: list[GenerationChunk], row: int = 0) -> Generation:
    mine = [chunk for chunk in chunks if chunk.row == row]
    assert [chunk.finish_reason is None for chunk in mine] == [True] * (len(mine) - 1) + [False]
    assert all(chunk.tokens or chunk.text or chunk.finish_reason for chunk in mine)
    text = "".join(chunk.text or "" for chunk in mine)
    return Generation([t for p in mine for t in p.tokens], text, mine[-1].finish_reason or "length")


# Stops


def test_a_stop_token_ends_a_row_and_is_not_returned() -> None:
    (result,) = speaker("hello").generate([[0]], max_new_tokens=40, stop_tokens=[END])
    assert result == Generation(list(b"hello"), "hello", "stop_token")


def test_without_stops_a_row_ends_at_its_length() -> None:
    (result,) = speaker("hello").generate([[0]], max_new_tokens=3)
    assert result == Generation(list(b"hel"), "hel", "length")


def test_a_stop_token_as_the_very_first_token() -> None:
    (result,) = speaker("").generate([[0]], max_new_tokens=5, stop_tokens=[END])
    assert result == Generation([], "", "stop_token")


def test_a_stop_token_at_the_last_position_is_the_finish_reason() -> None:
    (result,) = speaker("ab").generate([[0]], max_new_tokens=3, stop_tokens=[END])
    assert result == Generation(list(b"ab"), "ab", "stop_token")


def test_a_stop_string_ends_the_text_before_it_and_the_tokens_with_it() -> None:
    (result,) = speaker("one\n\ntwo").generate([[0]], max_new_tokens=40, stop_strings=["\n\n"])
    assert result == Generation(list(b"one\n\n"), "one", "stop_string")


def test_a_stop_string_in_the_prompt_does_not_count() -> None:
    (result,) = speaker("ab").generate([[10, 10]], max_new_tokens=2, stop_strings=["\n\n"])
    assert result.finish_reason == "length"


def test_rows_finish_independently() -> None:
    # The script stands at fixed positions, so a longer prompt enters it later.
    prompts = [[0], [0] * 4, [0] * 9, [0] * 5]
    results = speaker("abcdefghij").generate(prompts, max_new_tokens=6, stop_tokens=[END])
    assert [result.text for result in results] == ["abcdef", "defghi", "ij", "efghij"]
    assert [result.finish_reason for result in results] == [
        "length",
        "length",
        "stop_token",
        "length",
    ]


def test_without_a_tokenizer_there_is_no_text() -> None:
    (result,) = speaker("hi", tokenizer=None).generate([[0]], max_new_tokens=2)
    assert result == Generation(list(b"hi"), None, "length")


def test_no_prompts_give_nothing() -> None:
    assert speaker("hi").generate([], max_new_tokens=2) == []


def test_prompts_may_be_text_lists_or_arrays() -> None:
    prompts: list[Any] = ["é", [195, 169], np.asarray([195, 169], np.uint8)]
    results = speaker("-abc").generate(prompts, max_new_tokens=2)
    assert [result.text for result in results] == ["ab"] * 3


# Streams


@pytest.mark.parametrize("tokenizer", ["own", "data"])
def test_a_stream_yields_complete_characters(tokenizer: str) -> None:
    text = "é😀日本 ok"
    options: dict[str, Any] = {}
    if tokenizer == "data":
        options = {"tokenizer": ByteTokenizer.Config().build()}
    stream = speaker(text, **options).stream(
        [[0]], max_new_tokens=40, stop_tokens=[END], tokens_per_chunk=1
    )
    chunks = list(stream)
    assert joined(chunks).text == text
    assert "\ufffd" not in "".join(chunk.text or "" for chunk in chunks)
    assert [chunk.text for chunk in chunks if chunk.text] == list(text)


def test_a_stream_holds_back_a_possible_stop_string() -> None:
    generator = speaker("ab--c---d")
    chunks = list(
        generator.stream([[0]], max_new_tokens=20, stop_strings=["---"], tokens_per_chunk=1)
    )
    assert joined(chunks) == Generation(list(b"ab--c---"), "ab--c", "stop_string")
    assert [chunk.text for chunk in chunks if chunk.text] == ["a", "b", "--c"]


@pytest.mark.parametrize("tokens_per_chunk", [1, 3, 32])
def test_a_stream_is_what_generate_returns(generator: Generator, tokens_per_chunk: int) -> None:
    prompts = [[1, 2, 3], [4], list(range(12))]
    options: dict[str, Any] = {"sampler": SAMPLING, "max_new_tokens": 21, "stop_tokens": [7, 8, 9]}
    whole = generator.generate(prompts, seed=3, **options)
    stream = generator.stream(prompts, seed=3, tokens_per_chunk=tokens_per_chunk, **options)
    chunks = list(stream)
    for row, expected in enumerate(whole):
        got = joined(chunks, row)
        assert (got.tokens, got.finish_reason) == (expected.tokens, expected.finish_reason)


# Randomness


def test_the_seed_decides_the_sample(generator: Generator) -> None:
    def sample(seed: int) -> list[int]:
        (result,) = generator.generate([[5]], max_new_tokens=20, sampler=SAMPLING, seed=seed)
        return result.tokens

    assert sample(0) == sample(0)
    assert sample(0) != sample(1)


def test_the_same_prompt_in_several_rows_gives_several_samples(generator: Generator) -> None:
    results = generator.generate([[5]] * 4, max_new_tokens=20, sampler=SAMPLING)
    assert len({tuple(result.tokens) for result in results}) == 4


def test_batching_does_not_change_a_rows_sample(generator: Generator) -> None:
    options: dict[str, Any] = {"sampler": SAMPLING, "max_new_tokens": 16}
    prompts = [[5, 6], [7], list(range(13)), [9] * 9]
    together = generator.generate(prompts, **options)
    assert generator.generate(prompts[:1], **options) == together[:1]
    others = [[5, 6], [3] * 4, [0], [9] * 9]
    again = generator.generate(others, **options)
    assert (again[0], again[3]) == (together[0], together[3])


# Compiled programs


TRACES: list[tuple[int, ...]] = []


class Counting(CausalLM):
    """Counts how often JAX traces it."""

    def logits(self, tokens_BS: jax.Array, context: TokenContext, last_B: jax.Array) -> jax.Array:
        TRACES.append(tokens_BS.shape)
        return super().logits(tokens_BS, context, last_B)


def test_few_programs_serve_many_requests() -> None:
    config = replace(MODELS["llama"], CausalLM, Counting.Config())
    params = initialize(config.build(), jax.random.key(0))
    generator = Generator(config, params, length=LENGTH)

    def traced(*lengths: int, new: int, sampler: Any = None) -> set[tuple[int, ...]]:
        TRACES.clear()
        prompts = [[1] * length for length in lengths]
        generator.generate(prompts, max_new_tokens=new, sampler=sampler, stop_tokens=[3])
        return set(TRACES)

    assert traced(3, 9, 5, new=5) == {(4, 16), (4, 1)}
    assert traced(1, 16, 7, 2, new=20) == set()
    assert traced(3, 17, 5, new=9) == {(4, 32)}
    assert traced(3, 40, 5, new=2, sampler=Greedy.Config()) == {
        (4, 48)
    }  # no longer than the KV cache
    TRACES.clear()
    list(generator.stream([[1]] * 4, max_new_tokens=9, tokens_per_chunk=2))
    other = generator.with_params(initialize(config.build(), jax.random.key(1)))
    other.generate([[1]] * 4, max_new_tokens=9)
    assert not TRACES


def test_with_params_uses_the_new_ones(generator: Generator) -> None:
    model = MODELS["grouped, tied"].build()
    first, second = (initialize(model, jax.random.key(seed)) for seed in (0, 1))
    options: dict[str, Any] = {"sampler": SAMPLING, "max_new_tokens": 8}
    before = generator.generate([[1]], **options)
    other = generator.with_params(second)
    assert other.generate([[1]], **options) != before
    assert generator.generate([[1]], **options) == before
    assert other.with_params(first).generate([[1]], **options) == before


# Mistakes


@pytest.mark.parametrize(
    ("prompts", "options", "message"),
    [
        (
            [[1] * 60],
            {"max_new_tokens": 10},
            r"prompts\[0\]: 60 tokens and 10 new ones make 70, but",
        ),
        ([[1] * 60], {}, "KV cache holds 63. Build the .* length=64, or lower max_new_tokens to 3"),
        ([[1], [1] * 80], {}, r"prompts\[1\]: 80 tokens .* or shorten the prompt"),
        ([[1], []], {}, r"prompts\[1\]: expected at least one token, got nothing.*end-of-text"),
        ([""], {}, r"prompts\[0\]: expected at least one token"),
        (["a"], {"tokenizer": None}, r"prompts\[0\]: the prompt is text, but .* no tokenizer"),
        ("hello", {}, r"prompts: expected a list of prompts, got one string. Write \['hello'\]"),
        ([[1, 257]], {}, r"prompts\[0\]: token 257 is not in .* ids are 0 to 256"),
        ([[-1]], {}, r"prompts\[0\]: token -1 is not in"),
        ([np.asarray([[1, 2]])], {}, r"prompts\[0\]: .* got an array of shape \(1, 2\)"),
        ([[1]], {"max_new_tokens": 0}, "max_new_tokens: expected 1 or more, got 0"),
        ([[1]], {"seed": -1}, "seed: expected 0 or more and less than 4294967296, got -1"),
        ([[1]], {"stop_tokens": [300]}, "stop_tokens: 300 can never be generated"),
        ([[1]], {"stop_strings": [""]}, "stop_strings: an empty string would stop"),
        (
            [[1]],
            {"stop_strings": "END"},
            r"stop_strings: expected a list of strings, .* Write \['END'\]",
        ),
        ([[1]], {"stop_strings": ["x"], "tokenizer": None}, "stop_strings: .* has no tokenizer"),
    ],
)
def test_mistakes_are_explained_before_anything_runs(
    prompts: Any, options: dict[str, Any], message: str
) -> None:
    options = {"max_new_tokens": 4, **options}
    generator = speaker("x", tokenizer=options.pop("tokenizer", Bytes()))
    with pytest.raises(ConfigError, match=message):
        generator.generate(prompts, **options)
    with pytest.raises(ConfigError, match=message):
        generator.stream(prompts, **options)  # at the call, not at the first chunk


def test_chunks_have_a_sensible_size() -> None:
    with pytest.raises(ConfigError, match="tokens_per_chunk: expected 1 to 32, got 0"):
        speaker("x").stream([[1]], max_new_tokens=4, tokens_per_chunk=0)


def test_a_model_without_logits_is_refused() -> None:
    linear: Any = Linear.Config(in_features=2, out_features=2)
    with pytest.raises(ConfigError, match="config has no NoKVCache"):
        Generator(linear, {}, length=8)
    mixer: Any = MIXERS["attention"].clone(width=32)
    with pytest.raises(ConfigError, match=r"expected the config of a language model .* Attention"):
        Generator(mixer, {}, length=8)


def test_vocabulary_is_the_models(generator: Generator) -> None:
    with pytest.raises(ConfigError, match=f"ids are 0 to {VOCABULARY - 1}"):
        generator.generate([[VOCABULARY]], max_new_tokens=1)
