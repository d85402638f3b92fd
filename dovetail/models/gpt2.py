"""GPT-2: layer norms, biases, learned positions, no gate in the feed-forward, tied embeddings."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dovetail.layers import Attention, Linear, PreNorm, TransformerBlock, layers_of
from dovetail.layers.feed_forward import PlainFeedForward
from dovetail.layers.norms import LayerNorm
from dovetail.layers.positions.learned import LearnedPositions
from dovetail.models.causal_lm import CausalLM
from dovetail.models.compose import language_model
from dovetail.models.family import ModelFamily, register_family
from dovetail.models.hf import HFConfig, activation_name
from dovetail.module import Split, WeightRule


def from_hf(values: Mapping[str, Any]) -> CausalLM.Config:
    """Reads a config.json."""
    hf = HFConfig({**values, "hidden_size": values.get("n_embd")})
    hf.require("add_cross_attention", False)
    hf.require("scale_attn_weights", True)
    hf.require("scale_attn_by_inverse_layer_idx", False)
    width, norm = hf["n_embd"], LayerNorm.Config(epsilon=hf.get("layer_norm_epsilon", 1e-5))
    biased = Linear.Config(bias=True)
    block = TransformerBlock.Config(
        attention=Attention.Config(
            num_heads=hf["n_head"],
            query=biased,
            key=biased,
            value=biased,
            output=biased,
        ),
        attention_residual=PreNorm.Config(norm=norm),
        feed_forward=PlainFeedForward.Config(
            hidden=hf.get("n_inner", 4 * width),
            activation=hf.activation("activation_function", "gelu_new"),
            up=biased,
            down=biased,
        ),
        feed_forward_residual=PreNorm.Config(norm=norm),
    )
    positions = LearnedPositions.Config(length=hf["n_positions"])
    layers = [block] * hf["n_layer"]
    return language_model(hf, layers, norm=norm, tied=True, positions=positions)


def to_hf(config: CausalLM.Config) -> dict[str, Any]:
    """Writes a config.json."""
    layers = layers_of(config.decoder.stack)
    attention, feed_forward = layers[0].attention, layers[0].feed_forward
    return {
        "vocab_size": config.vocab_size,
        "n_embd": config.width,
        "n_layer": len(layers),
        "n_head": attention.num_heads,
        "n_inner": feed_forward.hidden,
        "n_positions": config.decoder.positions.length,
        "activation_function": activation_name(feed_forward.activation, "gelu_new"),
        "layer_norm_epsilon": config.decoder.norm.epsilon,
        "tie_word_embeddings": not hasattr(config.head, "weight_init"),
    }


def tiny() -> dict[str, Any]:
    """A feed-forward of an odd width."""
    return {
        "vocab_size": 96,
        "n_embd": 32,
        "n_layer": 2,
        "n_head": 4,
        "n_inner": 56,
        "n_positions": 64,
        "activation_function": "gelu_new",
        "layer_norm_epsilon": 1e-5,
    }


# Its linear weights are stored as (in, out), like ours.
def _linear(hf_name: str, *paths: str) -> tuple[WeightRule, ...]:
    steps = (Split(-1),) if len(paths) > 1 else ()
    return (
        WeightRule(f"{hf_name}.weight", tuple(f"{path}/weight" for path in paths), steps),
        WeightRule(f"{hf_name}.bias", tuple(f"{path}/bias" for path in paths), steps),
    )


def _norm(hf_name: str, path: str) -> tuple[WeightRule, ...]:
    return WeightRule(f"{hf_name}.weight", f"{path}/scale"), WeightRule(
        f"{hf_name}.bias", f"{path}/bias"
    )


_LAYER, _BLOCK = "transformer.h.{layer}", "decoder/stack/*"
FAMILY = register_family(
    ModelFamily(
        name="gpt2",
        model_type="gpt2",
        architecture="GPT2LMHeadModel",
        from_hf=from_hf,
        to_hf=to_hf,
        weights=(
            WeightRule("transformer.wte.weight", "decoder/embedding/weight"),
            WeightRule("transformer.wpe.weight", "decoder/positions/weight"),
            WeightRule("lm_head.weight", "head/weight"),
            *_norm("transformer.ln_f", "decoder/norm"),
            *_norm(f"{_LAYER}.ln_1", f"{_BLOCK}/attention_residual/norm"),
            *_norm(f"{_LAYER}.ln_2", f"{_BLOCK}/feed_forward_residual/norm"),
            *_linear(
                f"{_LAYER}.attn.c_attn",
                *(f"{_BLOCK}/attention/{name}" for name in ("query", "key", "value")),
            ),
            *_linear(f"{_LAYER}.attn.c_proj", f"{_BLOCK}/attention/output"),
            *_linear(f"{_LAYER}.mlp.c_fc", f"{_BLOCK}/feed_forward/up"),
            *_linear(f"{_LAYER}.mlp.c_proj", f"{_BLOCK}/feed_forward/down"),
        ),
        ignored=("*.attn.bias", "*.attn.masked_bias"),
        tiny=tiny,
    )
)
