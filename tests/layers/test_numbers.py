"""The numbers of the layers, against plain numpy (references.py) and JAX's own attention."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dovetail.config import Config, ConfigError
from dovetail.layers import (
    Attention,
    Embedding,
    FeedForward,
    Linear,
    PreNorm,
    RMSNorm,
    TokenContext,
)
from dovetail.layers.norms import LayerNorm
from dovetail.layers.positions.rope_scaling import NtkScaling
from dovetail.layers.positions.rotary import RotaryEmbedding
from dovetail.layers.residual import PostNorm, SandwichNorm
from dovetail.module import functional, parameter_specs
from tests.layers import references
from tests.layers.cases import BATCH, HEADS, HIDDEN, KV_HEADS, SEQUENCE, VOCAB, WIDTH, tokens

Params = dict[str, np.ndarray]


def numbers(seed: int, *shape: int) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=shape)


def params_of(config: Config[Any]) -> Params:
    """Random values for every parameter; no zero biases and no scales of one that hide mistakes."""
    specs = parameter_specs(config.build())
    return {path: 0.4 * numbers(len(path), *spec.shape) for path, spec in specs.items()}


def run(config: Config[Any], params: Params, *arguments: Any) -> Any:
    lowered = {path: jnp.asarray(value, jnp.float32) for path, value in params.items()}
    inputs = tuple(
        jnp.asarray(value, jnp.float32) if isinstance(value, np.ndarray) else value
        for value in arguments
    )
    module = config.build()
    return jax.jit(lambda *arguments: functional(module, *arguments)[0])(lowered, inputs)


def close(actual: Any, expected: np.ndarray) -> None:
    np.testing.assert_allclose(actual, expected, rtol=1e-5, atol=1e-5)


@pytest.fixture
def x() -> np.ndarray:
    return 2 + 3 * numbers(0, BATCH, SEQUENCE, WIDTH)


@pytest.fixture
def packed() -> TokenContext:
    """Two segments in a row, the second from position 0 again."""
    positions = np.array([0, 1, 2, 3, 0, 1])
    segments = np.array([1, 1, 1, 1, 2, 2])
    shape = (BATCH, SEQUENCE)
    return TokenContext(*(jnp.asarray(np.broadcast_to(a, shape)) for a in (positions, segments)))


def test_linear(x: np.ndarray) -> None:
    config = Linear.Config(in_features=WIDTH, out_features=HIDDEN, bias=True)
    params = params_of(config)
    close(run(config, params, x), x @ params["weight"] + params["bias"])


def test_embedding(x: np.ndarray) -> None:
    config = Embedding.Config(vocab_size=VOCAB, width=WIDTH)
    params = params_of(config)
    close(run(config, params, tokens()), params["weight"][np.asarray(tokens())])
    lowered = {"weight": jnp.asarray(params["weight"], jnp.float32)}
    logits, _ = functional(config.build(), lowered, jnp.asarray(x, jnp.float32), method="logits")
    close(logits, x @ params["weight"].T)


def test_a_token_beyond_the_vocabulary_is_not_taken_for_another() -> None:
    config = Embedding.Config(vocab_size=VOCAB, width=WIDTH)
    found = run(config, params_of(config), jnp.array([[VOCAB - 1, VOCAB]]))
    assert np.isfinite(found[0, 0]).all()
    assert np.isnan(found[0, 1]).all()


def test_rms_norm(x: np.ndarray) -> None:
    config = RMSNorm.Config(width=WIDTH, epsilon=0.5)
    params = params_of(config)
    close(run(config, params, x), references.rms_norm(x, params["scale"], 0.5))


def test_layer_norm(x: np.ndarray) -> None:
    config = LayerNorm.Config(width=WIDTH, epsilon=0.5)
    params = params_of(config)
    expected = references.layer_norm(x, params["scale"], params["bias"], 0.5)
    close(run(config, params, x), expected)


def test_gated_feed_forward(x: np.ndarray) -> None:
    config = FeedForward.Config(width=WIDTH, hidden=HIDDEN)
    params = params_of(config)
    weights = [params[f"{name}/weight"] for name in ("gate", "up", "down")]
    actual, expected = run(config, params, x / 4), references.swiglu(x / 4, *weights)
    np.testing.assert_allclose(actual, expected, rtol=1e-5, atol=1e-4)


def at(positions: Any) -> TokenContext:
    return TokenContext(jnp.asarray(positions), jnp.ones_like(jnp.asarray(positions)))


@pytest.mark.parametrize("offset", [0, 100_000])
def test_rotary_embedding(offset: int) -> None:
    config = RotaryEmbedding.Config(head_width=8, base=500.0)
    query, key = numbers(1, 2, 5, 4, 8), numbers(2, 2, 5, 2, 8)
    positions = offset + np.array([[0, 1, 2, 3, 4], [7, 0, 0, 100, 3]])
    turned_query, turned_key = run(config, {}, query, key, at(positions))
    # Far out, an angle in single precision is known to about position x 2^-24.
    tolerance = 1e-5 + offset * 2**-23
    for actual, plain in ((turned_query, query), (turned_key, key)):
        expected = references.rotary(plain, positions, 500.0)
        np.testing.assert_allclose(actual, expected, atol=tolerance)


def test_rotary_scores_depend_on_distance_alone() -> None:
    config = RotaryEmbedding.Config(head_width=8)
    query, key = numbers(1, 1, 2, 1, 8), numbers(2, 1, 2, 1, 8)

    def score(first: int, second: int) -> float:
        turned_query, turned_key = run(config, {}, query, key, at([[first, second]]))
        return float(jnp.vdot(turned_query[0, 0], turned_key[0, 1]))

    assert score(3, 1) == pytest.approx(score(103, 101), abs=1e-4)
    assert score(3, 1) != pytest.approx(score(3, 2), abs=1e-4)


class TwoAxisRotary(RotaryEmbedding):
    """Rotates the first pairs by the row of an image patch, and the others by its column."""

    def angles(self, frequencies: np.ndarray, context: TokenContext) -> jax.Array:
        rows, columns = (axis[..., None] for axis in context.get("axes"))
        is_row = jnp.arange(len(frequencies)) < len(frequencies) // 2
        return jnp.where(is_row, rows, columns) * frequencies


def test_rotary_positions_of_several_axes_are_a_named_input() -> None:
    config = TwoAxisRotary.Config(head_width=8)
    query, key = numbers(1, 1, 4, 1, 8), numbers(2, 1, 4, 1, 8)
    rows, columns = jnp.array([[0, 0, 1, 1]]), jnp.array([[0, 1, 0, 1]])
    turned, _ = run(config, {}, query, key, at([[0, 1, 2, 3]]).provide("axes", (rows, columns)))
    by_row = references.rotary(query, np.asarray(rows), 10_000.0)
    by_column = references.rotary(query, np.asarray(columns), 10_000.0)
    is_row = np.arange(8) % 4 < 2  # feature i is paired with i + 4
    np.testing.assert_allclose(turned, np.where(is_row, by_row, by_column), atol=1e-5)


@pytest.mark.parametrize("head_width", [None, 6])
@pytest.mark.parametrize("kv_heads", [HEADS, KV_HEADS, 1])
def test_attention(
    x: np.ndarray, packed: TokenContext, kv_heads: int, head_width: int | None
) -> None:
    config = Attention.Config(
        width=WIDTH,
        num_heads=HEADS,
        num_kv_heads=kv_heads,
        head_width=head_width,
        positions=RotaryEmbedding.Config(),
    )
    params = params_of(config)
    x = x / 3
    width = head_width or WIDTH // HEADS
    query, key, value = (
        (x @ params[f"{name}/weight"]).reshape(BATCH, SEQUENCE, -1, width)
        for name in ("query", "key", "value")
    )
    positions, segments = np.asarray(packed.positions_BS), np.asarray(packed.segment_ids_BS)
    query = references.rotary(query, positions, 10_000.0)
    key = references.rotary(key, positions, 10_000.0)
    mixed = references.grouped_attention(query, key, value, segments, width**-0.5)
    expected = mixed.reshape(BATCH, SEQUENCE, -1) @ params["output/weight"]
    np.testing.assert_allclose(run(config, params, x, packed), expected, rtol=1e-4, atol=1e-4)

    theirs = jax.nn.dot_product_attention(
        *(jnp.asarray(array, jnp.float32) for array in (query, key, value)),
        mask=jnp.asarray(segments[:, None, :, None] == segments[:, None, None, :]),
        is_causal=True,
    )
    np.testing.assert_allclose(mixed, theirs, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("residual", [PreNorm, PostNorm, SandwichNorm])
def test_norm_placement(x: np.ndarray, residual: Any) -> None:
    config = residual.Config(width=WIDTH)
    params, output = params_of(config), numbers(9, BATCH, SEQUENCE, WIDTH)

    def norm(value: np.ndarray, name: str = "norm") -> np.ndarray:
        return references.rms_norm(value, params[f"{name}/scale"], 1e-6)

    before, after = {
        PreNorm: lambda: (norm(x), x + output),
        PostNorm: lambda: (x, norm(x + output)),
        SandwichNorm: lambda: (norm(x), x + norm(output, "output_norm")),
    }[residual]()
    lowered = {path: jnp.asarray(value, jnp.float32) for path, value in params.items()}
    arrays = [jnp.asarray(value, jnp.float32) for value in (x, output)]
    module = config.build()
    close(functional(module, lowered, arrays[0], method="before")[0], before)
    close(functional(module, lowered, tuple(arrays), method="after")[0], after)


def test_ntk_scaling_is_a_larger_base() -> None:
    """The slowest pair is stretched by the factor, the fastest not at all."""
    width, base, factor = 16, 10_000.0, 8.0
    exponents = np.arange(0, width, 2) / width
    scaled = NtkScaling.Config(factor=factor).build().scaled(base**-exponents, base)
    larger = base * factor ** (width / (width - 2))
    np.testing.assert_allclose(scaled, larger**-exponents, rtol=1e-12)
    assert scaled[0] == 1.0
    assert scaled[-1] == pytest.approx(base ** -exponents[-1] / factor)
    with pytest.raises(ConfigError, match=r"factor: expected 1 or more, got 0.5"):
        NtkScaling.Config(factor=0.5).build()
