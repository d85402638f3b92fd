"""GPT-2: layer norms, biases, learned positions, a feed-forward without a gate, tied tables."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dovetail.layers import Attention, Linear, PreNorm, TransformerBlock, layers_of
from dovetail.layers.feed_forward.plain import PlainFeedForward
from dovetail.layers.norms.layer import LayerNorm
from dovetail.layers.positions.learned import LearnedPositions
from dovetail.models.causal_lm import CausalLM
from dovetail.models.compose import language_model
from dovetail.models.family import Family, register_family
from dovetail.models.hub import HubConfig, activation_name
from dovetail.module import Split, Weight


def from_hf(values: Mapping[str, Any]) -> CausalLM.Config:
    """Reads a config.json."""
    hub = HubConfig({**values, "hidden_size": values.get("n_embd")})
    hub.only("add_cross_attention", False)
    hub.only("scale_attn_weights", True)
    hub.only("scale_attn_by_inverse_layer_idx", False)
    width, norm = hub["n_embd"], LayerNorm.Config(epsilon=hub.get("layer_norm_epsilon", 1e-5))
    biased = Linear.Config(bias=True)
    block = TransformerBlock.Config(
        attention=Attention.Config(
            num_heads=hub["n_head"],
            query=biased,
            key=biased,
            value=biased,
            output=biased,
        ),
        attention_residual=PreNorm.Config(norm=norm),
        feed_forward=PlainFeedForward.Config(
            hidden=hub.get("n_inner", 4 * width),
            activation=hub.activation("activation_function", "gelu_new"),
            up=biased,
            down=biased,
        ),
        feed_forward_residual=PreNorm.Config(norm=norm),
    )
    positions = LearnedPositions.Config(length=hub["n_positions"])
    layers = [block] * hub["n_layer"]
    return language_model(hub, layers, norm=norm, tied=True, positions=positions)


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


# Its linear maps are kept as (in, out), as ours are.
def _linear(theirs: str, *ours: str) -> tuple[Weight, ...]:
    steps = (Split(-1),) if len(ours) > 1 else ()
    return (
        Weight(f"{theirs}.weight", tuple(f"{path}/weight" for path in ours), steps),
        Weight(f"{theirs}.bias", tuple(f"{path}/bias" for path in ours), steps),
    )


def _norm(theirs: str, ours: str) -> tuple[Weight, ...]:
    return Weight(f"{theirs}.weight", f"{ours}/scale"), Weight(f"{theirs}.bias", f"{ours}/bias")


_LAYER, _BLOCK = "transformer.h.{layer}", "decoder/stack/*"
FAMILY = register_family(
    Family(
        name="gpt2",
        model_type="gpt2",
        architecture="GPT2LMHeadModel",
        from_hf=from_hf,
        to_hf=to_hf,
        weights=(
            Weight("transformer.wte.weight", "decoder/embedding/weight"),
            Weight("transformer.wpe.weight", "decoder/positions/weight"),
            Weight("lm_head.weight", "head/weight"),
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
