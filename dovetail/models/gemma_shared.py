"""What Gemma 2 and 3 share: sandwich norms, local and global layers."""

from __future__ import annotations

from typing import Any

from dovetail.config import Config
from dovetail.layers import TransformerBlock, layers_of
from dovetail.layers.embedding import ScaledEmbedding
from dovetail.layers.norms import OffsetRMSNorm
from dovetail.layers.residual import SandwichNorm
from dovetail.models.causal_lm import CausalLM
from dovetail.models.compose import (
    common_to_hf,
    feed_forward,
    feed_forward_to_hf,
    language_model,
)
from dovetail.models.hf import (
    BLOCK,
    GLOBAL,
    LAYER,
    LOCAL,
    TINY,
    HFConfig,
    norm,
    window_of,
)
from dovetail.models.rotary import rotary_attention

# Defaults of missing keys.
DEFAULTS: dict[str, Any] = {
    "num_key_value_heads": 4,
    "head_dim": 256,
    "query_pre_attn_scalar": 256,
    "sliding_window": 4096,
}


def layer_kinds(hf: HFConfig, period: int) -> list[str]:
    """Returns LOCAL or GLOBAL for each layer; by default the last of each period is global."""
    count = hf["num_hidden_layers"]
    default = [GLOBAL if (index + 1) % period == 0 else LOCAL for index in range(count)]
    return hf.layer_kinds(default)


def gemma_attention(hf: HFConfig, kind: str, **changes: Any) -> Any:
    """Returns the attention of a local or global layer."""
    bias = hf.get("attention_bias", False)
    return rotary_attention(
        hf,
        window=hf["sliding_window"] if kind == LOCAL else None,
        qkv_bias=bias,
        output_bias=bias,
        scale=hf["query_pre_attn_scalar"] ** -0.5,
        **changes,
    )


def sandwich_block(hf: HFConfig, attention: Config[Any]) -> Config[Any]:
    """Returns a transformer block with sandwich norms."""
    norm = OffsetRMSNorm.Config(epsilon=hf.get("rms_norm_eps", 1e-6))
    residual = SandwichNorm.Config(norm=norm, output_norm=norm)
    return TransformerBlock.Config(
        attention=attention,
        attention_residual=residual,
        feed_forward=feed_forward(hf, "hidden_activation", "gelu_pytorch_tanh"),
        feed_forward_residual=residual,
    )


def gemma_model(hf: HFConfig, layers: list[Config[Any]]) -> CausalLM.Config:
    """Returns a model with these layers and scaled, tied embeddings."""
    norm = OffsetRMSNorm.Config(epsilon=hf.get("rms_norm_eps", 1e-6))
    return language_model(hf, layers, norm=norm, tied=True, embedding=ScaledEmbedding.Config())


def shared_to_hf(config: CausalLM.Config) -> dict[str, Any]:
    """Writes the keys that both share."""
    layers = layers_of(config.decoder.stack)
    windows = [window_of(layer.attention.mask) for layer in layers]
    first = layers[0]
    return {
        **common_to_hf(config),
        **feed_forward_to_hf(first.feed_forward, "hidden_activation", "gelu_pytorch_tanh"),
        "attention_bias": first.attention.output.bias,
        "rms_norm_eps": config.decoder.norm.epsilon,
        "query_pre_attn_scalar": _as_int(first.attention.scale**-2),
        "sliding_window": next((window for window in windows if window), None),
        "layer_types": [LOCAL if window else GLOBAL for window in windows],
    }


def shared_tiny() -> dict[str, Any]:
    """Returns the settings that both tiny models share."""
    return TINY | {
        "head_dim": 16,
        "query_pre_attn_scalar": 24,
        "sliding_window": 5,
        "rms_norm_eps": 1e-6,
        "tie_word_embeddings": True,
    }


def _as_int(number: float) -> float | int:
    return round(number) if abs(number - round(number)) < 1e-9 * number else number


NORMS = (
    norm(f"{LAYER}.input_layernorm", f"{BLOCK}/attention_residual/norm"),
    norm(f"{LAYER}.post_attention_layernorm", f"{BLOCK}/attention_residual/output_norm"),
    norm(f"{LAYER}.pre_feedforward_layernorm", f"{BLOCK}/feed_forward_residual/norm"),
    norm(f"{LAYER}.post_feedforward_layernorm", f"{BLOCK}/feed_forward_residual/output_norm"),
)
