"""A family that the package does not have takes one file: this one (StableLM 2), and no edit."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
import torch

from dovetail.interop import export_hf, import_hf
from dovetail.layers import LayerNorm, Places, PreNorm, TransformerBlock
from dovetail.models import CausalLM, Family, families, family, register_family
from dovetail.models.compose import (
    attention,
    common_to_hf,
    feed_forward,
    gated_to_hf,
    language_model,
)
from dovetail.models.hub import (
    ATTENTION,
    FEED_FORWARD,
    PRE_NORMS,
    TABLES,
    HubConfig,
    layers_of,
    rotary_to_hf,
)
from dovetail.module import Weight, functional
from tests.models.formula import taken_over
from tests.parity.reference import load, write_model


def from_hf(values: Mapping[str, Any]) -> CausalLM.Config:
    hub = HubConfig(values, partial_rotary_factor=0.25)
    hub.only("use_parallel_residual", False)
    hub.only("qk_layernorm", False)
    norm = LayerNorm.Config(epsilon=hub.get("layer_norm_eps", 1e-5))
    mixer = attention(hub, inward_bias=hub.get("use_qkv_bias", False))
    joint = PreNorm.Config(norm=norm)
    block = TransformerBlock.Config(
        attention=mixer,
        attention_residual=joint,
        feed_forward=feed_forward(hub),
        feed_forward_residual=joint,
    )
    return language_model(hub, [block] * hub["num_hidden_layers"], norm=norm)


def to_hf(config: CausalLM.Config) -> dict[str, Any]:
    block = layers_of(config.decoder.stack)[0]
    return {
        **common_to_hf(config),
        **gated_to_hf(block.feed_forward),
        **rotary_to_hf(block.attention.positions),
        "layer_norm_eps": config.decoder.norm.epsilon,
        "use_qkv_bias": block.attention.query.bias,
    }


def tiny() -> dict[str, Any]:
    return {
        "vocab_size": 96,
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "use_qkv_bias": True,
        "partial_rotary_factor": 0.25,
        "layer_norm_eps": 1e-5,
        "max_position_embeddings": 64,
        "tie_word_embeddings": False,
    }


BIASES = tuple(
    Weight(rule.theirs.replace(".weight", ".bias"), str(rule.ours).replace("/scale", "/bias"))
    for rule in (*PRE_NORMS, TABLES[-1])
)
STABLELM = Family(
    name="stablelm",
    model_type="stablelm",
    architecture="StableLmForCausalLM",
    from_hf=from_hf,
    to_hf=to_hf,
    weights=(*TABLES, *ATTENTION, *FEED_FORWARD, *PRE_NORMS, *BIASES),
    tiny=tiny,
)


@pytest.fixture
def stablelm(monkeypatch: pytest.MonkeyPatch) -> Iterator[Family]:
    """Registers the family, for this test alone."""
    families()
    monkeypatch.setattr(family, "_families", dict(family._families))
    return register_family(STABLELM)


def test_logits_and_files(stablelm: Family, tmp_path: Path) -> None:
    state = write_model(stablelm, str(tmp_path / "hf"))
    theirs = load(stablelm, str(tmp_path / "hf"))
    ours = stablelm.from_hf(theirs.config.to_dict()).build()
    params, _ = taken_over(stablelm, ours, state)
    ids = np.random.default_rng(1).integers(3, 96, (2, 13))
    places = Places(jnp.tile(jnp.arange(13), (2, 1)), jnp.ones((2, 13), int))
    logits, _ = functional(ours, params, (jnp.asarray(ids), places), method="all_logits")
    with torch.no_grad():
        expected = theirs(torch.tensor(ids)).logits.numpy()
    np.testing.assert_allclose(logits, expected, atol=1e-4)

    import_hf(str(tmp_path / "hf"), tmp_path / "run", progress=False)
    export_hf(tmp_path / "run", tmp_path / "out", progress=False)
    with torch.no_grad():
        again = load(stablelm, str(tmp_path / "out"))(torch.tensor(ids)).logits.numpy()
    np.testing.assert_array_equal(again, expected)
