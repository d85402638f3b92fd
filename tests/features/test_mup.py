"""muP: the coordinate check. What training does to a model does not depend on its width."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dovetail.config import ConfigError, apply_modifier, select
from dovetail.experiments import experiments
from dovetail.features import NotApplicable, features
from dovetail.layers import BaseAttention, TokenContext
from dovetail.layers.loss.multi_token import MultiTokenHead
from dovetail.layers.mup import InverseWidthScale, ScaledReadout
from dovetail.learner import AdamW, ConstantSchedule, Learner, Lion
from dovetail.learner.optimizers.mup import MupOptimizer
from dovetail.models.llama import llama
from dovetail.module import TokenBatch, functional, initialize, parameter_specs
from dovetail.trainer import Trainer
from tests.features.representatives import with_features

NARROW, WIDE, STEPS, VOCAB, KEY = 32, 256, 4, 32, jax.random.key(3)


def config_of(width: int) -> Any:
    """Heads of one width, more of them the wider the model."""
    model = llama(
        vocab_size=VOCAB, width=width, num_layers=1, num_heads=width // 16, hidden=2 * width
    )
    learner = Learner.Config(
        optimizer=AdamW.Config(), schedule=ConstantSchedule.Config(peak=0.01), clip_norm=None
    )
    return Trainer.Config(model=model, learner=learner)


def batch() -> TokenBatch:
    tokens = jax.random.randint(KEY, (4, 9), 0, VOCAB)
    positions = jnp.broadcast_to(jnp.arange(8), (4, 8))
    return TokenBatch(
        tokens=tokens[:, :-1],
        targets=tokens[:, 1:],
        positions=positions,
        segment_ids=jnp.ones_like(positions),
        loss_weights=jnp.ones(positions.shape),
    )


def moved(config: Any) -> float:
    """Returns how far the logits have moved after a few steps, as a root mean square."""
    model, learner = config.model.build(), config.learner.build()
    context = TokenContext(batch().positions, batch().segment_ids)
    state = learner.init(model, initialize(model, KEY), {})

    @jax.jit
    def step(state: Any) -> tuple[Any, jax.Array]:
        inputs = (batch().tokens, context)
        logits, _ = functional(model, state.params, inputs, method="all_logits")
        return learner.step(model, state, batch(), KEY)[0], logits

    state, first = step(state)
    for _ in range(STEPS):
        state, last = step(state)
    return float(jnp.sqrt(jnp.mean((last - first) ** 2)))


def test_the_coordinate_check() -> None:
    """Eight times the width: without muP logits move much farther, with it they do not."""
    mup = features()["mup"].apply
    plain = [moved(config_of(width)) for width in (NARROW, WIDE)]
    scaled = [moved(mup(config_of(width), NARROW, 16)) for width in (NARROW, WIDE)]
    assert plain[1] > 2.5 * plain[0]
    assert 0.5 < scaled[1] / scaled[0] < 1.5


def test_at_the_base_width_only_other_fans_change() -> None:
    config = config_of(NARROW)
    changed = features()["mup"].apply(config, NARROW, 16)
    one, other = config.model.build(), changed.model.build()
    params = initialize(one, KEY)
    assert {p: s.shape for p, s in parameter_specs(one).items()} == {
        p: s.shape for p, s in parameter_specs(other).items()
    }
    inputs = (batch().tokens, TokenContext(batch().positions, batch().segment_ids))
    expected, _ = functional(one, params, inputs, method="all_logits")
    result, _ = functional(other, params, inputs, method="all_logits")
    np.testing.assert_allclose(result, expected, rtol=1e-6)


@pytest.mark.parametrize("name", ["qwen3-30b-a3b", "deepseek-v3", "gpt2"])
def test_it_reaches_every_attention_the_readout_and_the_rates(name: str) -> None:
    config = with_features(name, "mup:base_width=16,base_head_width=8")
    for attention in select(config, BaseAttention):
        assert isinstance(attention.scale, InverseWidthScale.Config)
    assert isinstance(config.model.decoder.norm, ScaledReadout.Config)
    assert isinstance(config.learner.optimizer, MupOptimizer.Config)
    assert parameter_specs(config.build().model)
    with pytest.raises(NotApplicable, match=r"MupOptimizer already: it applies only once"):
        apply_modifier(config, "mup")


def test_muon_is_refused() -> None:
    with pytest.raises(NotApplicable, match=r"Muon already: .* too small .* AdamW first"):
        with_features("tiny-lm", "mup")


def factors(config: Any) -> dict[str, float]:
    """Returns what the rate of each parameter is multiplied by: plain directions of ones."""
    specs = parameter_specs(config.model.clone(vocab_size=8).build())
    # Specs alone, without a layer axis: the full size is never made.
    rates = config.learner.optimizer.build()
    return {path: rates._factor(spec) for path, spec in specs.items()}


@pytest.mark.parametrize("adapter", ["lora", "dora"])
def test_a_rank_is_no_width(adapter: str) -> None:
    plain = experiments()["llama3-8b"].config()
    config = apply_modifier(apply_modifier(plain, f"{adapter}:rank=16"), "mup")
    found = factors(config)
    rates = {ending: {v for p, v in found.items() if p.endswith(f"_{ending}")} for ending in "ab"}
    assert rates == {"a": {256 / 4096, 256 / 14336}, "b": {1.0}}


def test_another_optimizer_goes_inside() -> None:
    config = with_features("gpt2", "mup", "optimizer:name=lion,peak=0.001")
    rates = config.learner.optimizer
    assert isinstance(rates, MupOptimizer.Config)
    assert (rates.base_width, rates.optimizer) == (256, Lion.Config())
    assert config.learner.schedule.peak == 0.001
    with pytest.raises(ConfigError, match=r"learner.optimizer.optimizer: .* got Sgd. Choose one"):
        with_features("gpt2", "mup", "optimizer:name=sgd").build()


@pytest.mark.parametrize("name", ["gpt2", "gemma2-2b", "qwen3-30b-a3b"])
def test_further_heads_are_scaled_in_either_order(name: str) -> None:
    config = with_features(name, "mtp", "mup:base_width=16")
    assert config == with_features(name, "mup:base_width=16", "mtp")
    (head,) = select(config, MultiTokenHead)
    assert head.norm == config.model.decoder.norm
    assert head.norm == ScaledReadout.Config(
        base_width=16, norm=with_features(name).model.decoder.norm
    )
