"""Samplers: which tokens they can draw, how often, and what they refuse."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.stats import chisquare

from dovetail.config import ConfigError, from_text, same, to_text
from dovetail.generate import Greedy, Sampling

DRAWS = 20_000


def keys(count: int, seed: int = 0) -> jax.Array:
    return jax.random.split(jax.random.key(seed), count)


def draws(config: Sampling.Config, logits: list[float]) -> np.ndarray:
    """Returns how often each token is drawn, one row a draw."""
    logits_BV = jnp.broadcast_to(jnp.asarray(logits, jnp.float32), (DRAWS, len(logits)))
    tokens_B = jax.jit(config.build())(logits_BV, keys(DRAWS))
    assert tokens_B.dtype == jnp.int32
    return np.bincount(np.asarray(tokens_B), minlength=len(logits))


def kept(config: Sampling.Config, probabilities: list[float]) -> dict[int, float]:
    """Returns the tokens that can be drawn, with their probabilities."""
    scores, tokens = config.build().candidates(jnp.log(jnp.asarray([probabilities])))
    chances = np.asarray(jax.nn.softmax(scores, axis=-1))[0]
    ids = range(len(chances)) if tokens is None else np.asarray(tokens)[0].tolist()
    return {int(i): float(chance) for i, chance in zip(ids, chances, strict=True) if chance > 0}


def test_greedy_takes_the_likeliest_and_of_equals_the_first() -> None:
    logits = jnp.asarray([[0.0, 2.0, 1.0], [3.0, 1.0, 3.0]], jnp.bfloat16)
    assert Greedy.Config().build()(logits, keys(2)).tolist() == [1, 0]


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        (Sampling.Config(), [0.5, 0.25, 0.15, 0.1]),
        (Sampling.Config(temperature=0.5), [0.725, 0.181, 0.065, 0.029]),
        (Sampling.Config(top_k=2), [2 / 3, 1 / 3, 0, 0]),
        (Sampling.Config(top_p=0.8), [0.5 / 0.9, 0.25 / 0.9, 0.15 / 0.9, 0]),
        (Sampling.Config(temperature=2.0, top_k=3, top_p=0.7), [0.586, 0.414, 0, 0]),
    ],
)
def test_draws_follow_the_filtered_distribution(
    config: Sampling.Config, expected: list[float]
) -> None:
    counts = draws(config, np.log([0.5, 0.25, 0.15, 0.1]).tolist())
    possible = np.asarray(expected) > 0
    assert not counts[~possible].any()
    wanted = np.asarray(expected)[possible]
    result = chisquare(counts[possible], DRAWS * wanted / wanted.sum())
    assert result.pvalue > 1e-3, counts


@pytest.mark.parametrize(
    ("top_p", "tokens"),
    [
        (1e-9, {0}),  # at least one token is kept
        (0.5, {0}),  # reached exactly
        (0.5001, {0, 1}),
        (0.75, {0, 1}),  # of equals, as few as are needed, the lower id first
        (0.7501, {0, 1, 2}),
        (1.0, {0, 1, 2}),
    ],
)
def test_top_p_keeps_the_smallest_set_that_reaches_the_mass(top_p: float, tokens: set[int]) -> None:
    assert set(kept(Sampling.Config(top_p=top_p), [0.5, 0.25, 0.25])) == tokens


def test_top_p_of_one_keeps_even_the_rarest_token() -> None:
    rare = [1.0] + [1e-9] * 500
    assert len(kept(Sampling.Config(top_p=1.0), rare)) == 501
    assert len(kept(Sampling.Config(top_p=1.0, top_k=400), rare)) == 400


def test_top_k_keeps_exactly_k_of_equals_and_all_where_there_are_fewer() -> None:
    assert set(kept(Sampling.Config(top_k=2), [0.25] * 4)) == {0, 1}
    assert set(kept(Sampling.Config(top_k=1), [0.1, 0.2, 0.7])) == {2}
    assert set(kept(Sampling.Config(top_k=50), [0.1, 0.2, 0.7])) == {0, 1, 2}


def test_top_p_sees_the_distribution_that_top_k_left() -> None:
    # Of all, 0.4 + 0.3 reach 0.65; of the two that top-k leaves, 0.4 / 0.7 falls short of it.
    both = kept(Sampling.Config(top_k=2, top_p=0.55), [0.4, 0.3, 0.2, 0.1])
    assert set(both) == {0}  # 0.4 alone is less than 0.55, but 0.4 / 0.7 is more
    alone = kept(Sampling.Config(top_p=0.55), [0.4, 0.3, 0.2, 0.1])
    assert set(alone) == {0, 1}


def test_top_p_sees_the_distribution_that_the_temperature_made() -> None:
    hot = kept(Sampling.Config(temperature=100.0, top_p=0.8), [0.97, 0.01, 0.01, 0.01])
    cold = kept(Sampling.Config(temperature=0.5, top_p=0.8), [0.97, 0.01, 0.01, 0.01])
    assert (len(hot), len(cold)) == (4, 1)


@pytest.mark.parametrize("temperature", [1e-3, 1e-30, 1e-300])
def test_a_very_low_temperature_is_greedy_and_finite(temperature: float) -> None:
    config = Sampling.Config(temperature=temperature, top_p=0.9)
    logits = jnp.asarray([[300.0, 1e4, 9.9e3, -1e30]] * 4)
    assert config.build()(logits, keys(4)).tolist() == [1, 1, 1, 1]


def test_a_row_does_not_depend_on_the_other_rows() -> None:
    sampler = Sampling.Config(temperature=0.9, top_k=20, top_p=0.9).build()
    logits, row_keys = jax.random.normal(jax.random.key(5), (8, 64)), keys(8)
    together = sampler(logits, row_keys).tolist()
    alone = [sampler(logits[i : i + 1], row_keys[i : i + 1])[0].item() for i in range(8)]
    assert together == alone


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"temperature": 0.0}, r"temperature: expected a finite number above 0, got 0.0.*Greedy"),
        ({"temperature": -1.0}, "temperature: .* got -1.0"),
        ({"temperature": float("nan")}, "temperature: .* got nan"),
        ({"temperature": float("inf")}, "temperature: .* got inf"),
        ({"top_k": 0}, "top_k: expected 1 or more, or None to keep all tokens, got 0"),
        ({"top_p": 0.0}, "top_p: expected more than 0 and at most 1, .* got 0.0"),
        ({"top_p": 1.1}, "top_p: .* got 1.1"),
        ({"top_p": float("nan")}, "top_p: .* got nan"),
    ],
)
def test_impossible_settings_are_refused(fields: dict[str, float], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Sampling.Config(**fields).build()


def test_a_sampler_reads_back_from_text() -> None:
    config = Sampling.Config(temperature=0.7, top_k=40)
    assert same(from_text(to_text(config)), config)
