"""What decoder families are composed of: the parts that config.json's common keys describe."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import Any, TypeVar

from dovetail.config import Config, ConfigError
from dovetail.layers import (
    Attention,
    Decoder,
    Embedding,
    FeedForward,
    Linear,
    LoadBalanceLoss,
    MixtureOfExperts,
    NormedLinear,
    PreNorm,
    RMSNorm,
    TransformerBlock,
    arrange,
)
from dovetail.models.causal_lm import CausalLM
from dovetail.models.hub import (
    GLOBAL,
    LOCAL,
    HubConfig,
    activation_name,
    layers_of,
    mask_from_window,
    rotary_from_hf,
    rotary_to_hf,
    window_of,
)

K = TypeVar("K", bound=Hashable)


def each_kind(kinds: Sequence[K], make: Callable[[K], Config[Any]]) -> list[Config[Any]]:
    """Returns a layer for each kind in a row, made once a kind: equal ones are found at once."""
    made = {kind: make(kind) for kind in dict.fromkeys(kinds)}
    return [made[kind] for kind in kinds]


def language_model(
    hub: HubConfig,
    layers: Sequence[Config[Any]],
    *,
    norm: Config[Any] | None = None,
    tied: bool = False,
    **decoder: Any,
) -> CausalLM.Config:
    """Returns the model that applies these layers; `tied` is what a left-out key means."""
    parts = Decoder.Config(stack=arrange(layers), norm=norm or rms_norm(hub)).set(**decoder)
    config = CausalLM.Config(vocab_size=hub["vocab_size"], width=hub["hidden_size"], decoder=parts)
    is_tied = hub.get("tie_word_embeddings", tied)
    return config if is_tied else config.set(head=Embedding.Config())


def rms_norm(hub: HubConfig) -> RMSNorm.Config:
    """Returns the norm of a model that has one kind."""
    return RMSNorm.Config(epsilon=hub["rms_norm_eps"])


def pre_norm_block(hub: HubConfig, attention: Config[Any], feed_forward: Any) -> Any:
    """Returns a block with a norm before each branch."""
    return TransformerBlock.Config(
        attention=attention,
        attention_residual=PreNorm.Config(norm=rms_norm(hub)),
        feed_forward=feed_forward,
        feed_forward_residual=PreNorm.Config(norm=rms_norm(hub)),
    )


def attention(
    hub: HubConfig,
    *,
    window: int | None = None,
    inward_bias: bool = False,
    output_bias: bool = False,
    **changes: Any,
) -> Attention.Config:
    """Returns grouped attention with rotary positions, as the common keys say it."""
    heads, width = hub["num_attention_heads"], hub.get("head_dim")
    kv_heads = hub.get("num_key_value_heads", heads)
    derived = width is None or width * heads == hub["hidden_size"]
    inward = Linear.Config(bias=inward_bias)
    config = Attention.Config(
        num_heads=heads,
        num_kv_heads=None if kv_heads == heads else kv_heads,
        head_width=None if derived else width,
        query=inward,
        key=inward,
        value=inward,
        output=Linear.Config(bias=output_bias),
        mask=mask_from_window(window),
    )
    return config.set(**{"positions": rotary_from_hf(hub), **changes})


def feed_forward(
    hub: HubConfig, key: str = "hidden_act", default: str = "silu", *, has_bias: bool = False
) -> FeedForward.Config:
    """Returns the gated feed-forward of the common keys."""
    bias = Linear.Config(bias=has_bias)
    return FeedForward.Config(
        hidden=hub["intermediate_size"],
        activation=hub.activation(key, default),
        gate=bias,
        up=bias,
        down=bias,
    )


def normed_attention(hub: HubConfig, window: int | None = None) -> Any:
    """Returns attention whose queries and keys are normalised, head by head."""
    bias = hub.get("attention_bias", False)
    mixer = attention(hub, window=window, inward_bias=bias, output_bias=bias)
    width = hub.get("head_dim") or hub["hidden_size"] // hub["num_attention_heads"]
    normed = NormedLinear.Config(linear=mixer.query, norm=rms_norm(hub), group=width)
    return mixer.set(query=normed, key=normed)


def windows(hub: HubConfig) -> list[int | None]:
    """Returns the window of each layer: those from `max_window_layers` on have one, if any."""
    count, window = hub["num_hidden_layers"], hub.get("sliding_window")
    if not hub.get("use_sliding_window", False) or window is None:
        return [None] * count
    full = hub["max_window_layers"]
    kinds = hub.layer_kinds([GLOBAL if index < full else LOCAL for index in range(count)])
    return [window if kind == LOCAL else None for kind in kinds]


def mixture(hub: HubConfig, expert: FeedForward.Config, count: int) -> MixtureOfExperts.Config:
    """Returns experts chosen by a softmax, with the balance loss that config.json asks for."""
    top_k = hub["num_experts_per_tok"]
    # Theirs counts each of a token's choices as a whole, so that even loads give top_k, ours 1.
    loss = LoadBalanceLoss.Config(coefficient=hub.get("router_aux_loss_coef", 0.001) * top_k)
    return MixtureOfExperts.Config(
        num_experts=count,
        top_k=top_k,
        expert=expert,
        losses={"balance": loss},
    )


def common_to_hf(config: CausalLM.Config) -> dict[str, Any]:
    """Writes the common keys of a model whose layers attend alike, but for their masks."""
    layers = layers_of(config.decoder.stack)
    first = _expect(layers[0], TransformerBlock.Config, "a transformer block")
    attention = _expect(first.attention, Attention.Config, "grouped attention")
    return {
        "vocab_size": config.vocab_size,
        "hidden_size": config.width,
        "num_hidden_layers": len(layers),
        "num_attention_heads": attention.num_heads,
        "num_key_value_heads": attention.num_kv_heads or attention.num_heads,
        "head_dim": attention.head_width or config.width // attention.num_heads,
        "tie_word_embeddings": not isinstance(config.head, Embedding.Config),
    }


def gated_to_hf(feed_forward: Any, key: str = "hidden_act", name: str = "silu") -> dict[str, Any]:
    """Writes a gated feed-forward."""
    part = _expect(feed_forward, FeedForward.Config, "a gated feed-forward")
    return {"intermediate_size": part.hidden, key: activation_name(part.activation, name)}


def epsilon_of(norm: Any) -> float:
    """Returns the epsilon of a norm."""
    return float(norm.epsilon)


def llama_to_hf(config: CausalLM.Config) -> dict[str, Any]:
    """Writes what most families have in common: alike blocks, rotary positions, gated maps."""
    block = layers_of(config.decoder.stack)[0]
    return {
        **common_to_hf(config),
        **gated_to_hf(block.feed_forward),
        **rotary_to_hf(block.attention.positions),
        "rms_norm_eps": epsilon_of(config.decoder.norm),
    }


def windows_to_hf(config: CausalLM.Config) -> dict[str, Any]:
    """Writes the windows of all layers."""
    found = [window_of(layer.attention.mask) for layer in layers_of(config.decoder.stack)]
    if not any(found):
        return {"use_sliding_window": False}
    return {
        "use_sliding_window": True,
        "sliding_window": next(window for window in found if window),
        "max_window_layers": found.index(next(window for window in found if window)),
        "layer_types": [LOCAL if w else GLOBAL for w in found],
    }


def routing_to_hf(experts: Any) -> dict[str, Any]:
    """Writes how many experts a token visits, and the weight of the balance loss."""
    loss = experts.losses.get("balance")
    return {
        "num_experts_per_tok": experts.top_k,
        "router_aux_loss_coef": 0.0 if loss is None else loss.coefficient / experts.top_k,
    }


def _expect(part: Any, kind: type[Config[Any]], what: str) -> Any:
    if not isinstance(part, kind):
        raise ConfigError(
            f"{part.tree_path()}: this format holds {what} here, got {type(part).display_name()}."
        )
    return part
