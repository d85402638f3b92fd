"""A family for the tests of files: Llama, unless the package has its own."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dovetail.config import ConfigError
from dovetail.layers import Embedding
from dovetail.models import CausalLM, Family, families, llama, register_family
from dovetail.module import Transpose, Weight

TINY = {
    "model_type": "llama",
    "vocab_size": 40,
    "hidden_size": 16,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 24,
    "rms_norm_eps": 1e-6,
    "hidden_act": "silu",
    "tie_word_embeddings": False,
    "max_position_embeddings": 64,
    "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
}


def from_hf(said: Mapping[str, Any]) -> CausalLM.Config:
    if said.get("hidden_act", "silu") != "silu":
        raise ConfigError(f"hidden_act: {said['hidden_act']!r} is not known.")
    return llama(
        vocab_size=said["vocab_size"],
        width=said["hidden_size"],
        num_layers=said["num_hidden_layers"],
        num_heads=said["num_attention_heads"],
        num_kv_heads=said["num_key_value_heads"],
        hidden=said["intermediate_size"],
        tied=said["tie_word_embeddings"],
    )


def to_hf(config: CausalLM.Config) -> dict[str, Any]:
    stack: Any = config.decoder
    stack = stack.stack
    attention = stack.layer.attention
    return {
        **TINY,
        "vocab_size": config.vocab_size,
        "hidden_size": config.width,
        "num_hidden_layers": stack.num_layers,
        "num_attention_heads": attention.num_heads,
        "num_key_value_heads": attention.num_kv_heads or attention.num_heads,
        "intermediate_size": stack.layer.feed_forward.hidden,
        "tie_word_embeddings": not isinstance(config.head, Embedding.Config),
    }


def _layer(theirs: str, ours: str) -> Weight:
    steps = () if "norm" in theirs else (Transpose(),)
    return Weight(f"model.layers.{{layer}}.{theirs}.weight", f"decoder/stack/*/{ours}", steps)


LLAMA = Family(
    name="llama",
    model_type="llama",
    architecture="LlamaForCausalLM",
    from_hf=from_hf,
    to_hf=to_hf,
    weights=(
        Weight("model.embed_tokens.weight", "decoder/embedding/weight"),
        _layer("self_attn.q_proj", "attention/query/weight"),
        _layer("self_attn.k_proj", "attention/key/weight"),
        _layer("self_attn.v_proj", "attention/value/weight"),
        _layer("self_attn.o_proj", "attention/output/weight"),
        _layer("mlp.gate_proj", "feed_forward/gate/weight"),
        _layer("mlp.up_proj", "feed_forward/up/weight"),
        _layer("mlp.down_proj", "feed_forward/down/weight"),
        _layer("input_layernorm", "attention_residual/norm/scale"),
        _layer("post_attention_layernorm", "feed_forward_residual/norm/scale"),
        Weight("model.norm.weight", "decoder/norm/scale"),
        Weight("lm_head.weight", "head/weight"),
    ),
    ignored=("*.rotary_emb.inv_freq",),
    tiny=lambda: dict(TINY),
)


def ensure_llama() -> Family:
    """Registers the family above where the package has no Llama of its own."""
    return families().get("llama") or register_family(LLAMA)
