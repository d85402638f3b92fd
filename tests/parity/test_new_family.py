"""A family that the package does not have takes one file: this one (StableLM 2), and no edit."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
import torch

from dovetail.interop import import_hf
from dovetail.layers import PreNorm, TokenContext, TransformerBlock, layers_of
from dovetail.layers.norms import LayerNorm
from dovetail.models import CausalLM, ModelFamily, families, family, register_family
from dovetail.models.compose import common_to_hf, feed_forward, feed_forward_to_hf, language_model
from dovetail.models.hf import ATTENTION, EMBED_AND_HEAD, FEED_FORWARD, PRE_NORMS, HFConfig
from dovetail.models.rotary import rotary_attention, rotary_to_hf
from dovetail.module import WeightRule, functional
from dovetail.run import Run
from tests.models.formula import to_parameters
from tests.parity.reference import load, write_model


def from_hf(values: Mapping[str, Any]) -> CausalLM.Config:
    hf = HFConfig(values, partial_rotary_factor=0.25)
    hf.require("use_parallel_residual", False)
    hf.require("qk_layernorm", False)
    norm = LayerNorm.Config(epsilon=hf.get("layer_norm_eps", 1e-5))
    mixer = rotary_attention(hf, qkv_bias=hf.get("use_qkv_bias", False))
    joint = PreNorm.Config(norm=norm)
    block = TransformerBlock.Config(
        attention=mixer,
        attention_residual=joint,
        feed_forward=feed_forward(hf),
        feed_forward_residual=joint,
    )
    return language_model(hf, [block] * hf["num_hidden_layers"], norm=norm)


def to_hf(config: CausalLM.Config) -> dict[str, Any]:
    block = layers_of(config.decoder.stack)[0]
    return {
        **common_to_hf(config),
        **feed_forward_to_hf(block.feed_forward),
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
    WeightRule(
        rule.foreign.replace(".weight", ".bias"), str(rule.parameters).replace("/scale", "/bias")
    )
    for rule in (*PRE_NORMS, EMBED_AND_HEAD[-1])
)
STABLELM = ModelFamily(
    name="stablelm",
    model_type="stablelm",
    architecture="StableLmForCausalLM",
    from_hf=from_hf,
    to_hf=to_hf,
    weights=(*EMBED_AND_HEAD, *ATTENTION, *FEED_FORWARD, *PRE_NORMS, *BIASES),
    tiny=tiny,
)


@pytest.fixture
def stablelm() -> Iterator[ModelFamily]:
    """Registers the family, for this test alone."""
    families()
    with family._families.restored(), family._by_model_type.restored():
        yield register_family(STABLELM)


def test_logits_and_files(stablelm: ModelFamily, tmp_path: Path) -> None:
    state = write_model(stablelm, str(tmp_path / "hf"))
    theirs = load(stablelm, str(tmp_path / "hf"))
    ours = stablelm.from_hf(theirs.config.to_dict()).build()
    params, _ = to_parameters(stablelm, ours, state)
    ids = np.random.default_rng(1).integers(3, 96, (2, 13))
    context = TokenContext(jnp.tile(jnp.arange(13), (2, 1)), jnp.ones((2, 13), int))
    logits, _ = functional(ours, params, (jnp.asarray(ids), context), method="all_logits")
    with torch.no_grad():
        expected = theirs(torch.tensor(ids)).logits.numpy()
    np.testing.assert_allclose(logits, expected, atol=1e-4)

    import_hf(str(tmp_path / "hf"), tmp_path / "run", progress=False)
    Run(tmp_path / "run").export_hf(tmp_path / "out", progress=False)
    with torch.no_grad():
        again = load(stablelm, str(tmp_path / "out"))(torch.tensor(ids)).logits.numpy()
    np.testing.assert_array_equal(again, expected)
