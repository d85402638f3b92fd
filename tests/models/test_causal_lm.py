"""CausalLM: loss, heads, packing and padding, errors, and components from outside."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dovetail.config import REQUIRED, ConfigError, from_text, replace, to_text
from dovetail.layers import FeedForward, NextTokenLoss, TokenContext
from dovetail.layers.positions.rotary import RotaryEmbedding
from dovetail.models import CausalLM
from dovetail.models.llama import llama
from dovetail.module import (
    Module,
    Outputs,
    TokenBatch,
    functional,
    initialize,
    parameter,
    parameter_specs,
)
from dovetail.parallel import AxisRules, MeshLayout, Placement, current_placement, use_placement
from tests.layers.cases import random_params

VOCAB, LENGTH, ROWS = 48, 12, 4


def small(**sizes: Any) -> CausalLM.Config:
    defaults = {"vocab_size": VOCAB, "width": 32, "num_layers": 2, "num_heads": 4, "hidden": 48}
    return llama(**(defaults | {"num_kv_heads": 2} | sizes))


def params_of(tied: bool = False) -> dict[str, jax.Array]:
    return random_params(small(tied=tied).build())


@pytest.fixture
def batch() -> TokenBatch:
    """Rows of two packed documents and some padding."""
    random = np.random.default_rng(0)
    segments = np.repeat([[1, 1, 1, 1, 1, 2, 2, 2, 2, 0, 0, 0]], ROWS, axis=0)
    positions = np.repeat([[0, 1, 2, 3, 4, 0, 1, 2, 3, 0, 0, 0]], ROWS, axis=0)
    tokens, targets = random.integers(0, VOCAB, (2, ROWS, LENGTH))
    weights = random.choice([0.5, 1.0, 2.0], (ROWS, LENGTH)) * (segments > 0)
    return TokenBatch(
        tokens=jnp.asarray(tokens),
        targets=jnp.asarray(targets),
        positions=jnp.asarray(positions),
        segment_ids=jnp.asarray(segments),
        loss_weights=jnp.asarray(weights, jnp.float32),
        extras={"target_bytes": jnp.asarray(random.integers(1, 6, (ROWS, LENGTH)))},
    )


def run(config: CausalLM.Config, params: Any, batch: TokenBatch) -> Outputs:
    model = config.build()
    return jax.jit(lambda *inputs: functional(model, *inputs, losses="return")[1])(params, batch)


def loss_and_gradients(config: CausalLM.Config, params: Any, batch: TokenBatch) -> Any:
    return compiled(to_text(config), current_placement())(params, batch)


@functools.cache
def compiled(text: str, placement: Placement | None) -> Any:
    """Compiles once for each config and each placement."""
    model = from_text(text).build()

    def loss(params: Any, batch: TokenBatch) -> jax.Array:
        _, outputs = functional(model, params, batch, losses="return")
        return outputs.losses["loss/next_token"].value()

    return jax.jit(jax.value_and_grad(loss))


def logits_of(params: Any, batch: TokenBatch, last: Any = None, tied: bool = False) -> np.ndarray:
    """Returns the logits of all tokens, or of the last one in each row."""
    model, context = small(tied=tied).build(), TokenContext(batch.positions, batch.segment_ids)
    inputs = (batch.tokens, context) if last is None else (batch.tokens, context, last)
    method = "all_logits" if last is None else "logits"
    run = jax.jit(lambda *arguments: functional(model, *arguments, method=method)[0])
    logits = run(params, inputs)
    assert logits.dtype == jnp.float32
    return np.asarray(logits, np.float64)


def test_tied_and_untied_heads() -> None:
    tied, untied = (parameter_specs(small(tied=tied).build()) for tied in (True, False))
    assert set(untied) - set(tied) == {"head/weight"}
    assert untied["head/weight"].shape == (VOCAB, 32)
    assert tied["decoder/embedding/weight"].shape == (VOCAB, 32)


@pytest.mark.parametrize(("tied", "z_loss"), [(True, 0.1), (False, 0.0)])
def test_the_loss_is_plain_cross_entropy(batch: TokenBatch, tied: bool, z_loss: float) -> None:
    config = small(tied=tied).set(loss=NextTokenLoss.Config(z_loss=z_loss))
    logits, weights = logits_of(params_of(tied), batch, tied=tied), np.asarray(batch.loss_weights)
    normalizer = np.log(np.exp(logits).sum(axis=-1))
    picked = np.take_along_axis(logits, np.asarray(batch.targets)[..., None], axis=-1)[..., 0]
    surprise = (weights * (normalizer - picked)).sum()

    outputs = run(config, params_of(tied), batch)
    loss = outputs.losses["loss/next_token"]
    penalty = z_loss * (weights * normalizer**2).sum()
    np.testing.assert_allclose(loss.total, surprise + penalty, rtol=1e-5)
    np.testing.assert_allclose(loss.weight, weights.sum(), rtol=1e-6)
    size = (weights * np.asarray(batch.extras["target_bytes"])).sum()
    bits = outputs.summaries["loss/bits_per_byte"].value()
    np.testing.assert_allclose(bits, surprise / np.log(2) / size, rtol=1e-5)


def test_bits_per_byte_only_where_bytes_are_known(batch: TokenBatch) -> None:
    outputs = run(small(), params_of(), dataclasses.replace(batch, extras={}))
    assert outputs.summaries == {}


def test_the_last_logits_are_those_of_all(batch: TokenBatch) -> None:
    everything = logits_of(params_of(), batch)
    last = jnp.array([0, 3, 8, 5])
    picked = logits_of(params_of(), batch, last)
    np.testing.assert_allclose(picked, everything[np.arange(ROWS), last], rtol=1e-5, atol=1e-6)


def test_packed_documents_are_as_good_as_alone(batch: TokenBatch) -> None:
    packed = logits_of(params_of(), batch)
    for start, stop in ((0, 5), (5, 9)):
        alone = jax.tree.map(lambda leaf, a=start, b=stop: leaf[:, a:b], batch)
        alone = dataclasses.replace(alone, segment_ids=jnp.ones_like(alone.segment_ids))
        expected = logits_of(params_of(), alone)
        np.testing.assert_allclose(packed[:, start:stop], expected, rtol=1e-4, atol=1e-5)


def test_padding_has_no_influence(batch: TokenBatch) -> None:
    is_padding = batch.segment_ids == 0
    changed = dataclasses.replace(
        batch,
        tokens=jnp.where(is_padding, (batch.tokens + 7) % VOCAB, batch.tokens),
        targets=jnp.where(is_padding, (batch.targets + 3) % VOCAB, batch.targets),
        positions=jnp.where(is_padding, 5, batch.positions),
    )

    value, gradients = loss_and_gradients(small(), params_of(), batch)
    other_value, other_gradients = loss_and_gradients(small(), params_of(), changed)
    assert value == other_value
    for path, gradient in gradients.items():
        np.testing.assert_allclose(gradient, other_gradients[path], atol=1e-6, err_msg=path)


@pytest.mark.slow  # it holds for optimised code, which only the slow tests compile
def test_unrolled_is_the_same_bit_for_bit(batch: TokenBatch) -> None:
    value, gradients = loss_and_gradients(small(), params_of(), batch)
    straight = small()
    straight.decoder.stack.unroll = 2
    other_value, other_gradients = loss_and_gradients(straight, params_of(), batch)
    assert value == other_value
    for path, gradient in gradients.items():
        np.testing.assert_array_equal(gradient, other_gradients[path], err_msg=path)


def test_a_new_model_knows_nothing_and_has_sane_sizes(batch: TokenBatch) -> None:
    config = small(width=128, hidden=256, tied=True)
    params = initialize(config.build(), jax.random.key(3))
    loss = run(config, params, batch).losses["loss/next_token"].value()
    assert loss == pytest.approx(np.log(VOCAB), rel=0.02)
    assert np.std(params["decoder/embedding/weight"]) == pytest.approx(0.02, rel=0.05)
    for name, fan_in in {"attention/query": 128, "feed_forward/down": 256}.items():
        weight = params[f"decoder/stack/layer/{name}/weight"]
        assert np.std(weight) == pytest.approx(fan_in**-0.5, rel=0.05)
        assert not np.array_equal(weight[0], weight[1])
    assert np.all(params["decoder/norm/scale"] == 1)


def test_sharded_equals_unsharded(batch: TokenBatch) -> None:
    config = small(tied=True)
    model, params = config.build(), params_of(True)
    mesh = MeshLayout.Config(data=2, fsdp=2, model=2).build().mesh()
    placement = Placement(mesh, AxisRules.Config().build())
    shardings = {
        path: placement.sharding(spec.axes, spec.shape, path)
        for path, spec in parameter_specs(model).items()
    }
    value, gradients = loss_and_gradients(config, params, batch)
    with use_placement(placement):
        split = jax.device_put(batch, placement.sharding(("batch",)))
        split_value, split_gradients = loss_and_gradients(
            config, jax.device_put(params, shardings), split
        )
    np.testing.assert_allclose(split_value, value, rtol=1e-6)
    for path, gradient in gradients.items():
        assert len(split_gradients[path].sharding.device_set) == 8
        np.testing.assert_allclose(split_gradients[path], gradient, rtol=1e-4, atol=1e-5)


def test_bfloat16(batch: TokenBatch) -> None:
    exact = run(small(), params_of(), batch).losses["loss/next_token"].value()
    loss = run(small().set(dtype="bfloat16"), params_of(), batch).losses["loss/next_token"]
    assert loss.total.dtype == jnp.float32
    assert float(loss.value()) != float(exact)
    assert float(loss.value()) == pytest.approx(float(exact), rel=5e-3)


ATTENTION = "decoder.stack.layer.attention"
IMPOSSIBLE: dict[tuple[str, int], str] = {
    ("num_heads", 5): (
        f"{ATTENTION}.num_heads: a width of 32 does not divide into 5 heads. "
        "Choose a number of heads that divides the width, or set head_width."
    ),
    ("num_kv_heads", 3): (
        f"{ATTENTION}.num_kv_heads: 3 key-value heads cannot be shared evenly by 4 heads. "
        "Choose a divisor of 4."
    ),
    ("width", 12): (
        f"{ATTENTION}.positions.head_width: rotary embedding rotates pairs of features, so it "
        "needs an even head width, got 3. Set the attention's head_width, or choose another number "
        "of heads."
    ),
    ("num_kv_heads", 0): f"{ATTENTION}.num_kv_heads: expected 1 or more, got 0.",
    ("hidden", -4): "decoder.stack.layer.feed_forward.hidden: expected 1 or more, got -4.",
    ("vocab_size", 0): "vocab_size: expected 1 or more, got 0.",
    ("num_layers", 0): "decoder.stack.num_layers: expected 1 or more, got 0.",
}


@pytest.mark.parametrize(("name", "size"), IMPOSSIBLE)
def test_impossible_sizes(name: str, size: int) -> None:
    with pytest.raises(ConfigError) as caught:
        small(**{name: size}).build()
    assert str(caught.value) == IMPOSSIBLE[name, size]


def test_an_explicit_head_width_need_not_divide() -> None:
    config = small(num_heads=5, num_kv_heads=1)
    config.decoder.stack.layer.attention.head_width = 8
    specs = parameter_specs(config.build())
    assert specs["decoder/stack/layer/attention/query/weight"].shape == (2, 32, 40)


class SquaredReLU(Module):
    """A feed-forward that the package does not know."""

    class Config(Module.Config["SquaredReLU"]):
        width: int = REQUIRED
        hidden: int = REQUIRED

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        shape, axes = (config.width, config.hidden), ("embed", "mlp")
        self.up = parameter(shape, axes, fan_in=(0,), fan_out=(1,))
        self.down = parameter(shape[::-1], axes[::-1], fan_in=(0,), fan_out=(1,))

    def __call__(self, x_BSE: jax.Array) -> jax.Array:
        return jnp.square(jax.nn.relu(x_BSE @ self.up)) @ self.down


class LearnedTurn(Module):
    """A position encoding that the package does not know, with a parameter of its own."""

    class Config(Module.Config["LearnedTurn"]):
        head_width: int = REQUIRED

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self.speed = parameter((config.head_width,), (None,), decays=False)

    def __call__(
        self, query_BSHD: jax.Array, key_BSKD: jax.Array, context: TokenContext
    ) -> tuple[jax.Array, jax.Array]:
        wave = jnp.cos(context.positions_BS[..., None, None] * self.speed)
        return query_BSHD * wave, key_BSKD * wave


@pytest.mark.parametrize(
    ("old", "new", "added"),
    [
        (FeedForward, SquaredReLU, "feed_forward/up"),
        (RotaryEmbedding, LearnedTurn, "attention/positions/speed"),
    ],
)
def test_parts_from_outside(batch: TokenBatch, old: Any, new: Any, added: str) -> None:
    config = replace(small(), old, new.Config())
    assert from_text(to_text(config)) == config
    value, gradients = loss_and_gradients(config, random_params(config.build()), batch)
    assert np.isfinite(value)
    assert np.abs(gradients[f"decoder/stack/layer/{added}"]).max() > 0
