"""Components that decoder families share: from the common keys of config.json, and back."""

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
    PreNorm,
    RMSNorm,
    TransformerBlock,
    arrange,
    layers_of,
)
from dovetail.models.causal_lm import CausalLM
from dovetail.models.hf import (
    GLOBAL,
    LOCAL,
    HFConfig,
    activation_name,
    mask_from_window,
    window_of,
)

K = TypeVar("K", bound=Hashable)


def layers_by_kind(kinds: Sequence[K], make: Callable[[K], Config[Any]]) -> list[Config[Any]]:
    """Returns the layer config of each kind; layers of one kind share one config object."""
    made = {kind: make(kind) for kind in dict.fromkeys(kinds)}
    return [made[kind] for kind in kinds]


def language_model(
    hf: HFConfig,
    layers: Sequence[Config[Any]],
    *,
    norm: Config[Any] | None = None,
    tied: bool = False,
    **decoder: Any,
) -> CausalLM.Config:
    """Returns a model with these layers; `tied` is the default of `tie_word_embeddings`."""
    built = Decoder.Config(stack=arrange(layers), norm=norm or rms_norm(hf)).set(**decoder)
    config = CausalLM.Config(vocab_size=hf["vocab_size"], width=hf["hidden_size"], decoder=built)
    is_tied = hf.get("tie_word_embeddings", tied)
    return config if is_tied else config.set(head=Embedding.Config())


def rms_norm(hf: HFConfig) -> RMSNorm.Config:
    """Returns RMSNorm with the epsilon of config.json."""
    return RMSNorm.Config(epsilon=hf["rms_norm_eps"])


def pre_norm_block(hf: HFConfig, attention: Config[Any], feed_forward: Any) -> Any:
    """Returns a pre-norm transformer block."""
    return TransformerBlock.Config(
        attention=attention,
        attention_residual=PreNorm.Config(norm=rms_norm(hf)),
        feed_forward=feed_forward,
        feed_forward_residual=PreNorm.Config(norm=rms_norm(hf)),
    )


def attention(
    hf: HFConfig,
    *,
    window: int | None = None,
    qkv_bias: bool = False,
    output_bias: bool = False,
    **changes: Any,
) -> Attention.Config:
    """Returns grouped-query attention from the common keys, without positions."""
    heads, width = hf["num_attention_heads"], hf.get("head_dim")
    kv_heads = hf.get("num_key_value_heads", heads)
    derived = width is None or width * heads == hf["hidden_size"]
    projection = Linear.Config(bias=qkv_bias)
    config = Attention.Config(
        num_heads=heads,
        num_kv_heads=None if kv_heads == heads else kv_heads,
        head_width=None if derived else width,
        query=projection,
        key=projection,
        value=projection,
        output=Linear.Config(bias=output_bias),
        mask=mask_from_window(window),
    )
    return config.set(**changes)


def feed_forward(
    hf: HFConfig, key: str = "hidden_act", default: str = "silu", *, has_bias: bool = False
) -> FeedForward.Config:
    """Returns the gated feed-forward layer from the common keys."""
    bias = Linear.Config(bias=has_bias)
    return FeedForward.Config(
        hidden=hf["intermediate_size"],
        activation=hf.activation(key, default),
        gate=bias,
        up=bias,
        down=bias,
    )


def windows(hf: HFConfig) -> list[int | None]:
    """Returns the sliding window of each layer; layers from `max_window_layers` on have one."""
    count, window = hf["num_hidden_layers"], hf.get("sliding_window")
    if not hf.get("use_sliding_window", False) or window is None:
        return [None] * count
    full = hf["max_window_layers"]
    kinds = hf.layer_kinds([GLOBAL if index < full else LOCAL for index in range(count)])
    return [window if kind == LOCAL else None for kind in kinds]


def common_to_hf(config: CausalLM.Config) -> dict[str, Any]:
    """Writes the common keys. The layers have equal attention, except for their masks."""
    layers = layers_of(config.decoder.stack)
    first = _expect(layers[0], TransformerBlock.Config, "a transformer block")
    attention = _expect(first.attention, Attention.Config, "grouped-query attention")
    return {
        "vocab_size": config.vocab_size,
        "hidden_size": config.width,
        "num_hidden_layers": len(layers),
        "num_attention_heads": attention.num_heads,
        "num_key_value_heads": attention.num_kv_heads or attention.num_heads,
        "head_dim": attention.head_width or config.width // attention.num_heads,
        "tie_word_embeddings": not isinstance(config.head, Embedding.Config),
    }


def feed_forward_to_hf(
    feed_forward: Any, key: str = "hidden_act", name: str = "silu"
) -> dict[str, Any]:
    """Writes a gated feed-forward layer."""
    gated = _expect(feed_forward, FeedForward.Config, "a gated feed-forward")
    return {"intermediate_size": gated.hidden, key: activation_name(gated.activation, name)}


def windows_to_hf(config: CausalLM.Config) -> dict[str, Any]:
    """Writes the sliding windows of all layers."""
    found = [window_of(layer.attention.mask) for layer in layers_of(config.decoder.stack)]
    if not any(found):
        return {"use_sliding_window": False}
    return {
        "use_sliding_window": True,
        "sliding_window": next(window for window in found if window),
        "max_window_layers": found.index(next(window for window in found if window)),
        "layer_types": [LOCAL if w else GLOBAL for w in found],
    }


def _expect(config: Any, kind: type[Config[Any]], what: str) -> Any:
    if not isinstance(config, kind):
        got = type(config).display_name()
        raise ConfigError(f"{config.tree_path()}: this format expects {what} here, got {got}.")
    return config
