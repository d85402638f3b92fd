"""Multi-token prediction: what each head reads and predicts, token by token; no cost elsewhere."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dovetail.config import from_text, to_text
from dovetail.generate import Generator
from dovetail.layers import NextTokenLoss, TokenContext, layers_of
from dovetail.layers.loss.multi_token import MultiTokenHead, MultiTokenLoss
from dovetail.learner import main_loss
from dovetail.models import CausalLM
from dovetail.models.llama import llama
from dovetail.module import TokenBatch, functional, parameter_specs
from dovetail.parallel import AxisRules, MeshLayout, Placement, use_placement
from tests.layers.cases import random_params
from tests.layers.references import rms_norm

VOCAB, WIDTH, DEPTH = 24, 16, 2
SEGMENTS = np.array([[1, 1, 1, 1, 2, 2, 2, 3, 0], [1, 2, 2, 2, 2, 2, 2, 2, 2]])
NAMES = [f"loss/heads/{number}/ahead" for number in range(DEPTH)]


def plain() -> CausalLM.Config:
    sizes = {"vocab_size": VOCAB, "width": WIDTH, "num_layers": 2, "num_heads": 4, "hidden": 24}
    return llama(**sizes)


def model() -> CausalLM.Config:
    config = plain()
    head = MultiTokenHead.Config(layer=layers_of(config.decoder.stack)[-1])
    return config.set(loss=MultiTokenLoss.Config(depth=DEPTH, weight=0.4, head=head))


def batch() -> TokenBatch:
    random = np.random.default_rng(3)
    tokens, targets = random.integers(0, VOCAB, (2, *SEGMENTS.shape))
    positions = np.stack([[np.sum(row[:s] == row[s]) for s in range(len(row))] for row in SEGMENTS])
    weights = random.choice([0.0, 0.5, 1.0, 2.0], SEGMENTS.shape) * (SEGMENTS > 0)
    return TokenBatch(
        tokens=jnp.asarray(tokens),
        targets=jnp.asarray(targets),
        positions=jnp.asarray(positions),
        segment_ids=jnp.asarray(SEGMENTS),
        loss_weights=jnp.asarray(weights, jnp.float32),
    )


def losses(config: CausalLM.Config, params: Any, given: TokenBatch, training: bool = True) -> Any:
    module = config.build()
    run = jax.jit(
        lambda p, b: functional(module, p, b, training=training, losses="return")[1].losses
    )
    return run(params, given)


def expected_losses(params: Any, given: TokenBatch) -> list[tuple[float, float]]:
    """The heads by the paper's equations 21 to 25, each token fetched from its own place."""
    config = model()
    p = {path: np.asarray(value, np.float64) for path, value in params.items()}
    context = TokenContext(given.positions, given.segment_ids)
    decoder = config.decoder.clone(vocab_size=VOCAB, width=WIDTH).build()
    layer = config.loss.head.layer.clone(width=WIDTH).build()
    stream = functional(decoder, below(params, "decoder/"), (given.tokens, context))[0]
    table, found = p["decoder/embedding/weight"], []
    for number in range(DEPTH):
        own, ahead = f"loss/heads/{number}/", number + 1
        further = np.zeros(stream.shape)
        for (row, s), segment in np.ndenumerate(SEGMENTS):
            if s + ahead < SEGMENTS.shape[1] and segment == SEGMENTS[row, s + ahead]:
                further[row, s] = table[given.tokens[row, s + ahead]]
        both = [
            rms_norm(np.asarray(stream, np.float64), p[f"{own}stream_norm/scale"], 1e-6),
            rms_norm(further, p[f"{own}token_norm/scale"], 1e-6),
        ]
        joined = np.concatenate(both, axis=-1) @ p[f"{own}projection/weight"]
        inputs = (jnp.asarray(joined, jnp.float32), context)
        stream = functional(layer, below(params, f"{own}layer/"), inputs)[0]
        logits = rms_norm(np.asarray(stream), p[f"{own}norm/scale"], 1e-6) @ p["head/weight"].T
        logs = logits - np.log(np.exp(logits).sum(axis=-1, keepdims=True))
        total = weight = 0.0
        for (row, s), segment in np.ndenumerate(SEGMENTS):
            if s + ahead < SEGMENTS.shape[1] and segment == SEGMENTS[row, s + ahead]:
                counts = float(given.loss_weights[row, s + ahead])
                total -= counts * logs[row, s, given.targets[row, s + ahead]]
                weight += counts
        found.append((0.4 / DEPTH * total, weight))
    return found


def below(params: Any, prefix: str) -> Any:
    return {p.removeprefix(prefix): v for p, v in params.items() if p.startswith(prefix)}


def test_heads_predict_tokens_further_ahead_within_the_segment() -> None:
    params, given = random_params(model().build()), batch()
    found = losses(model(), params, given)
    alone = losses(plain(), params, given)["loss/next_token"]
    assert set(found) == {"loss/base/next_token", *NAMES}
    np.testing.assert_allclose(found["loss/base/next_token"].total, alone.total, rtol=1e-6)
    for name, (total, weight) in zip(NAMES, expected_losses(params, given), strict=True):
        np.testing.assert_allclose(found[name].total, total, rtol=1e-4)
        assert float(found[name].weight) == pytest.approx(weight)
    assert main_loss(list(found)) == "loss/base/next_token"


def summed(config: CausalLM.Config, params: Any, given: TokenBatch) -> Any:
    _, outputs = functional(config.build(), params, given, training=True, losses="return")
    return sum(loss.total for loss in outputs.losses.values())


def test_gradients_reach_every_head_and_sharding_changes_nothing() -> None:
    config, given = model().set(vocab_size=VOCAB), batch()
    params, specs = random_params(config.build()), parameter_specs(config.build())
    gradients = jax.jit(jax.grad(lambda p, b: summed(config, p, b)))(params, given)
    for path, gradient in gradients.items():
        assert np.abs(gradient).max() > 0, path
    mesh = MeshLayout.Config(data=2, fsdp=1, model=4).build().mesh()
    placement = Placement(mesh, AxisRules.Config().build())

    def sharded(params: Any, given: TokenBatch) -> Any:
        with use_placement(placement):
            return jax.jit(jax.grad(lambda p: summed(config, p, given)))(params)

    shardings = {path: placement.sharding(s.axes, s.shape, path) for path, s in specs.items()}
    rows = placement.sharding(("batch",))
    split = jax.jit(sharded, in_shardings=(shardings, rows), out_shardings=shardings)
    for path, gradient in split(params, given).items():
        size = np.abs(gradients[path]).max()
        np.testing.assert_allclose(gradient / size, gradients[path] / size, atol=2e-5)


def test_nothing_but_training_runs_the_heads() -> None:
    params, given = random_params(model().build()), batch()
    assert set(losses(model(), params, given, training=False)) == {"loss/base/next_token"}

    def program(config: CausalLM.Config) -> str:
        module, index = config.build(), jnp.arange(4)[None]
        inputs = (index, TokenContext(index, jnp.ones_like(index)), jnp.array([3]))
        own = {path: params[path] for path in parameter_specs(plain().build())}
        return str(jax.make_jaxpr(lambda p: functional(module, p, inputs, method="logits")[0])(own))

    assert program(model()) == program(plain())
    generated = [
        Generator(config, params, length=12).generate([[1, 2, 3]], max_new_tokens=4)[0].tokens
        for config in (model(), plain())
    ]
    assert generated[0] == generated[1]


def test_text_round_trip() -> None:
    assert from_text(to_text(model())) == model()


def test_a_wrapped_loss_keeps_its_fields() -> None:
    config = model().set(loss=model().loss.set(base=NextTokenLoss.Config(z_loss=1e-3)))
    params = random_params(config.build())
    with_z = losses(config, params, batch())["loss/base/next_token"].total
    assert with_z > losses(model(), params, batch())["loss/base/next_token"].total
