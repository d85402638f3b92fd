"""What Gemma 2 and 3 have in common: sandwich norms, local and global layers."""

from __future__ import annotations

from typing import Any

from dovetail.config import Config
from dovetail.layers import (
    OffsetRMSNorm,
    SandwichNorm,
    ScaledEmbedding,
    TransformerBlock,
)
from dovetail.models.causal_lm import CausalLM
from dovetail.models.compose import (
    attention,
    common_to_hf,
    epsilon_of,
    feed_forward,
    gated_to_hf,
    language_model,
)
from dovetail.models.hub import (
    BLOCK,
    GLOBAL,
    LAYER,
    LOCAL,
    TINY,
    HubConfig,
    layers_of,
    norm,
    window_of,
)

# What keys mean that are left out, in both.
LEFT_OUT: dict[str, Any] = {
    "num_key_value_heads": 4,
    "head_dim": 256,
    "query_pre_attn_scalar": 256,
    "sliding_window": 4096,
}


def layer_kinds(hub: HubConfig, period: int) -> list[str]:
    """Returns local or global for each layer; by default the last of each period is global."""
    count = hub["num_hidden_layers"]
    default = [GLOBAL if (index + 1) % period == 0 else LOCAL for index in range(count)]
    return hub.layer_kinds(default)


def mixer(hub: HubConfig, kind: str, **changes: Any) -> Any:
    """Returns the attention of a kind of layer."""
    bias = hub.get("attention_bias", False)
    return attention(
        hub,
        window=hub["sliding_window"] if kind == LOCAL else None,
        inward_bias=bias,
        output_bias=bias,
        scale=hub["query_pre_attn_scalar"] ** -0.5,
        **changes,
    )


def block_around(hub: HubConfig, mixer: Config[Any]) -> Config[Any]:
    """Returns a block with norms on both sides of each branch."""
    norm = OffsetRMSNorm.Config(epsilon=hub.get("rms_norm_eps", 1e-6))
    joint = SandwichNorm.Config(norm=norm, output_norm=norm)
    return TransformerBlock.Config(
        attention=mixer,
        attention_residual=joint,
        feed_forward=feed_forward(hub, "hidden_activation", "gelu_pytorch_tanh"),
        feed_forward_residual=joint,
    )


def model_of(hub: HubConfig, layers: list[Config[Any]]) -> CausalLM.Config:
    """Returns the model of these layers."""
    norm = OffsetRMSNorm.Config(epsilon=hub.get("rms_norm_eps", 1e-6))
    return language_model(hub, layers, norm=norm, tied=True, embedding=ScaledEmbedding.Config())


def shared_to_hf(config: CausalLM.Config) -> dict[str, Any]:
    """Writes what both say alike."""
    layers = layers_of(config.decoder.stack)
    windows = [window_of(layer.attention.mask) for layer in layers]
    first = layers[0]
    return {
        **common_to_hf(config),
        **gated_to_hf(first.feed_forward, "hidden_activation", "gelu_pytorch_tanh"),
        "attention_bias": first.attention.output.bias,
        "rms_norm_eps": epsilon_of(config.decoder.norm),
        "query_pre_attn_scalar": _whole(first.attention.scale**-2),
        "sliding_window": next((window for window in windows if window), None),
        "layer_types": [LOCAL if window else GLOBAL for window in windows],
    }


def shared_tiny() -> dict[str, Any]:
    """Returns what the tiny forms of both have in common."""
    return TINY | {
        "head_dim": 16,
        "query_pre_attn_scalar": 24,
        "sliding_window": 5,
        "rms_norm_eps": 1e-6,
        "tie_word_embeddings": True,
    }


def _whole(number: float) -> float | int:
    return round(number) if abs(number - round(number)) < 1e-9 * number else number


NORMS = (
    norm(f"{LAYER}.input_layernorm", f"{BLOCK}/attention_residual/norm"),
    norm(f"{LAYER}.post_attention_layernorm", f"{BLOCK}/attention_residual/output_norm"),
    norm(f"{LAYER}.pre_feedforward_layernorm", f"{BLOCK}/feed_forward_residual/norm"),
    norm(f"{LAYER}.post_feedforward_layernorm", f"{BLOCK}/feed_forward_residual/output_norm"),
)
