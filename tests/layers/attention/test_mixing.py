"""Gated and differential heads against plain numpy, one head and one query at a time."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dovetail.config import Config, ConfigError
from dovetail.layers import Attention, TokenContext
from dovetail.layers.attention.latent import LatentAttention
from dovetail.layers.attention.mixing import DifferentialAttention, GatedAttention
from dovetail.layers.positions.rotary import RotaryEmbedding
from dovetail.module import functional, parameter_specs
from tests.layers import references
from tests.layers.cases import BATCH, HEADS, KV_HEADS, SEQUENCE, WIDTH, token_context

HEAD = WIDTH // HEADS
Params = dict[str, np.ndarray]


def attention(mixing: Config[Any], **changes: Any) -> Attention.Config:
    config = Attention.Config(
        width=WIDTH,
        num_heads=HEADS,
        num_kv_heads=KV_HEADS,
        positions=RotaryEmbedding.Config(),
        mixing=mixing,
    )
    return config.set(**changes)


def numbers(seed: int, *shape: int) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=shape)


def params_of(config: Config[Any]) -> Params:
    specs = parameter_specs(config.build())
    return {path: 0.4 * numbers(len(path), *spec.shape) for path, spec in specs.items()}


def run(
    config: Config[Any], params: Params, x: np.ndarray, where: TokenContext | None = None
) -> Any:
    module = config.build()
    lowered = {path: jnp.asarray(value, jnp.float32) for path, value in params.items()}
    inputs = (jnp.asarray(x, jnp.float32), where or token_context())
    return jax.jit(lambda *arguments: functional(module, *arguments)[0])(lowered, inputs)


def shapes(config: Config[Any]) -> dict[str, Any]:
    return {path: (s.shape, s.axes) for path, s in parameter_specs(config.build()).items()}


def heads(x: np.ndarray, params: Params) -> list[np.ndarray]:
    """Returns rotated queries and keys, and values."""
    query, key, value = (
        (x @ params[f"{name}/weight"]).reshape(BATCH, SEQUENCE, -1, HEAD)
        for name in ("query", "key", "value")
    )
    positions = np.broadcast_to(np.arange(SEQUENCE), (BATCH, SEQUENCE))
    return [*(references.rotary(one, positions, 10_000.0) for one in (query, key)), value]


def attend(query: np.ndarray, key: np.ndarray, value: np.ndarray) -> np.ndarray:
    """A causal softmax over each head's keys; values may be wider than keys."""
    result = np.zeros((*query.shape[:3], value.shape[-1]))
    group = query.shape[2] // key.shape[2]
    for b, s, h in np.ndindex(query.shape[:3]):
        scores = key[b, : s + 1, h // group] @ query[b, s, h] / np.sqrt(query.shape[-1])
        weights = np.exp(scores)
        result[b, s, h] = weights / weights.sum() @ value[b, : s + 1, h // group]
    return result


def test_gated_heads() -> None:
    config = attention(GatedAttention.Config())
    params, x = params_of(config), numbers(0, BATCH, SEQUENCE, WIDTH)
    mixed = attend(*heads(x, params)).reshape(BATCH, SEQUENCE, -1)
    gate = 1 / (1 + np.exp(-(x @ params["mixing/gate/weight"])))
    expected = (mixed * gate) @ params["output/weight"]
    np.testing.assert_allclose(run(config, params, x), expected, rtol=1e-4, atol=1e-5)


def test_differential_heads() -> None:
    """The paper's formula: two softmax maps, a norm for each head, and 1 - lambda_init."""
    config = attention(DifferentialAttention.Config(first_weight=0.6))
    params, x = params_of(config), numbers(0, BATCH, SEQUENCE, WIDTH)
    query, key, value = heads(x, params)
    (q_1, k_1), (q_2, k_2) = params["mixing/exponents"]
    weight = np.exp(q_1 @ k_1) - np.exp(q_2 @ k_2) + 0.6
    difference = attend(query[..., ::2], key[..., ::2], value)
    difference -= weight * attend(query[..., 1::2], key[..., 1::2], value)
    normed = 0.4 * references.rms_norm(difference, params["mixing/norm/scale"], 1e-5)
    expected = normed.reshape(BATCH, SEQUENCE, -1) @ params["output/weight"]
    np.testing.assert_allclose(run(config, params, x), expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("num_kv_heads", [HEADS, 1])
def test_both_maps_know_distances_alone(num_kv_heads: int) -> None:
    """Rotary embedding acts on each map as on the full heads."""
    config = attention(DifferentialAttention.Config(), num_kv_heads=num_kv_heads)
    params, x = params_of(config), numbers(0, BATCH, SEQUENCE, WIDTH)
    here = token_context()
    there = TokenContext(here.positions_BS + 50, here.segment_ids_BS)
    found = [run(config, params, x, where) for where in (here, there)]
    np.testing.assert_allclose(*found, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("mixing", [GatedAttention, DifferentialAttention])
def test_what_is_there_keeps_its_parameters(mixing: Any) -> None:
    latent = LatentAttention.Config(
        width=WIDTH, num_heads=2, latent_width=8, plain_width=4, rotated_width=4, value_width=6
    )
    for plain in (Attention.Config(width=WIDTH, num_heads=2), latent):
        before, after = (shapes(one) for one in (plain, plain.clone(mixing=mixing.Config())))
        assert before.items() <= after.items()
        assert all(path.startswith("mixing/") for path in after.keys() - before.keys())


def test_an_odd_head_cannot_make_two_maps() -> None:
    config = Attention.Config(
        width=WIDTH, num_heads=4, head_width=5, mixing=DifferentialAttention.Config()
    )
    with pytest.raises(
        ConfigError, match=r"mixing.key_width: .* must be even, got 5. Set the attention's head_wid"
    ):
        config.build()
