"""Phi-3: Llama; its checkpoints fuse query, key and value, and gate and up."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dovetail.config import ConfigError
from dovetail.layers import layers_of
from dovetail.models.causal_lm import CausalLM
from dovetail.models.compose import feed_forward, language_model, pre_norm_block
from dovetail.models.family import ModelFamily, register_family
from dovetail.models.hf import (
    BLOCK,
    EMBED_AND_HEAD,
    LAYER,
    PRE_NORMS,
    TINY,
    HFConfig,
    fused_linear,
    linear,
    window_of,
)
from dovetail.models.rotary import llama_to_hf, rope_type, rotary_attention, rotary_parameters


def from_hf(values: Mapping[str, Any]) -> CausalLM.Config:
    """Reads a config.json; "longrope" of the long-context releases is not supported."""
    hf = HFConfig(values, partial_rotary_factor=1.0)
    kind = rope_type(rotary_parameters(hf))
    if kind != "default":
        # "su" and "yarn" are longrope's names in older files.
        raise ConfigError(
            f"config.json: rope_type: the rotary scaling {kind!r} is not supported for this "
            "family, expected 'default': its frequencies change with the length of the text."
        )
    attention = rotary_attention(hf, window=hf.get("sliding_window") or None)
    block = pre_norm_block(hf, attention, feed_forward(hf))
    return language_model(hf, [block] * hf["num_hidden_layers"])


def to_hf(config: CausalLM.Config) -> dict[str, Any]:
    """Writes a config.json."""
    written = llama_to_hf(config)
    del written["head_dim"]  # Phi-3 always derives it
    block = layers_of(config.decoder.stack)[0]
    return written | {"sliding_window": window_of(block.attention.mask), "pad_token_id": 0}


def tiny() -> dict[str, Any]:
    """A window, grouped heads, and rotary positions in three quarters of each head."""
    return TINY | {
        "hidden_size": 64,
        "sliding_window": 5,
        "partial_rotary_factor": 0.75,
        "original_max_position_embeddings": 64,
        "pad_token_id": 7,
    }


_HEADS = (f"{BLOCK}/attention/query", f"{BLOCK}/attention/key", f"{BLOCK}/attention/value")
_GATES = (f"{BLOCK}/feed_forward/gate", f"{BLOCK}/feed_forward/up")
FAMILY = register_family(
    ModelFamily(
        name="phi3",
        model_type="phi3",
        architecture="Phi3ForCausalLM",
        from_hf=from_hf,
        to_hf=to_hf,
        weights=(
            *EMBED_AND_HEAD,
            *PRE_NORMS,
            *fused_linear(f"{LAYER}.self_attn.qkv_proj", *_HEADS),
            *linear(f"{LAYER}.self_attn.o_proj", f"{BLOCK}/attention/output"),
            *fused_linear(f"{LAYER}.mlp.gate_up_proj", *_GATES),
            *linear(f"{LAYER}.mlp.down_proj", f"{BLOCK}/feed_forward/down"),
        ),
        tiny=tiny,
    )
)
