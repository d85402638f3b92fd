"""Hugging Face's format: reading config.json, and weight mapping rules that families share."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import jax

from dovetail.config import ConfigError, config_for
from dovetail.kernels.attention import Causal, SlidingWindow
from dovetail.layers.feed_forward import exact_gelu
from dovetail.module import Split, Transpose, WeightRule

LOCAL, GLOBAL = "sliding_attention", "full_attention"
BLOCK = "decoder/stack/*"
LAYER = "model.layers.{layer}"

# Common settings of the tiny models; grouped heads, so that queries and keys differ in width.
TINY: dict[str, Any] = {
    "vocab_size": 96,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "rms_norm_eps": 1e-5,
    "max_position_embeddings": 64,
    "rope_theta": 10_000.0,
    "tie_word_embeddings": False,
}

_ACTIVATIONS: dict[str, Callable[..., Any]] = {
    "silu": jax.nn.silu,
    "gelu_pytorch_tanh": jax.nn.gelu,
    "gelu_new": jax.nn.gelu,
    "gelu": exact_gelu,
    "relu": jax.nn.relu,
}


class HFConfig:
    """A config.json. A missing or unsupported value is an error that names the key."""

    def __init__(self, values: Mapping[str, Any], **defaults: Any) -> None:
        """Wraps the values.

        Args:
            values: the config.json. A null is no value, and overrides the family's default.
            defaults: the family's defaults of missing keys.
        """
        self._keys, self._defaults = frozenset(values), frozenset(defaults)
        merged = {**defaults, **values}
        self._values = {key: value for key, value in merged.items() if value is not None}

    def __getitem__(self, key: str) -> Any:
        if key not in self._values:
            raise ConfigError(f"config.json: {key!r} is missing, and this family needs it.")
        return self._values[key]

    def has_default(self, key: str) -> bool:
        """Whether the family has a default for a key."""
        return key in self._defaults

    def get(self, key: str, default: Any = None) -> Any:
        """Returns a value, or the default if the key is null or missing."""
        return self._values.get(key, default)

    def get_unless_null(self, key: str, default: Any) -> Any:
        """Returns a value, or the default if the key is missing; null is an error."""
        return self[key] if key in self._keys else default

    def first_of(self, *keys: str) -> Any:
        """Returns the first value found; releases of transformers use different keys."""
        found = next((key for key in keys if key in self._values), None)
        if found is None:
            names = " or ".join(repr(key) for key in keys)
            raise ConfigError(f"config.json: {names} is missing, and this family needs it.")
        return self._values[found]

    def explicit(self, key: str) -> Any:
        """Returns a value, or None if it is null; a missing key is an error.

        Its default differs between families and releases.
        """
        if key not in self._keys:
            raise ConfigError(
                f"config.json: {key!r} is left out; write it, or null where it does not apply."
            )
        return self.get(key)

    def layer_kinds(self, default: list[str]) -> list[str]:
        """Returns LOCAL or GLOBAL for each layer."""
        kinds = list(self.get("layer_types", default))
        unknown = [kind for kind in kinds if kind not in (LOCAL, GLOBAL)]
        if unknown or len(kinds) != self["num_hidden_layers"]:
            what = repr(unknown[0]) if unknown else f"{len(kinds)} entries"
            raise ConfigError(
                f"config.json: layer_types: expected {LOCAL!r} or {GLOBAL!r} for each of "
                f"{self['num_hidden_layers']} layers, got {what}."
            )
        return kinds

    def require(self, key: str, *allowed: Any) -> None:
        """Raises ConfigError unless a value is allowed. The first allowed value is the default."""
        value = self.get(key, allowed[0])
        if value not in allowed:
            expected = " or ".join(repr(one) for one in allowed)
            raise ConfigError(
                f"config.json: {key} is {value!r}, which this family does not support; expected "
                f"{expected}."
            )

    def activation(self, key: str = "hidden_act", default: str = "silu") -> Callable[..., Any]:
        """Returns the activation function that a key names."""
        self.require(key, default, *_ACTIVATIONS)
        return _ACTIVATIONS[self.get(key, default)]


def activation_name(function: Callable[..., Any], *preferred: str) -> str:
    """Returns the name of an activation function in config.json; some have two."""
    names = [name for name, known in _ACTIVATIONS.items() if known is function]
    if not names:
        raise ConfigError(f"{function}: Hugging Face's formats have no name for this activation.")
    return next((name for name in preferred if name in names), names[0])


def mask_from_window(window: int | None) -> Any:
    """Returns the causal mask, with a sliding window if there is one."""
    return config_for(Causal) if window is None else config_for(SlidingWindow, window=window)


def window_of(mask: Any) -> int | None:
    """Returns the window of a causal mask, or None."""
    built = mask.build()
    if isinstance(built, SlidingWindow):
        return built.window
    if built == Causal():
        return None
    raise ConfigError(f"{mask.locate('')}: Hugging Face's formats cannot express the mask {built}.")


# Weight rules that many families share.


def linear(hf_name: str, path: str) -> tuple[WeightRule, ...]:
    """Maps a torch Linear, with its bias if it has one."""
    weight = WeightRule(f"{hf_name}.weight", f"{path}/weight", (Transpose(),))
    return weight, WeightRule(f"{hf_name}.bias", f"{path}/bias")


def fused_linear(hf_name: str, *paths: str) -> tuple[WeightRule, ...]:
    """Maps a torch Linear that concatenates several of our linear layers."""
    weights, biases = (tuple(f"{path}/{name}" for path in paths) for name in ("weight", "bias"))
    weight = WeightRule(f"{hf_name}.weight", weights, (Split(-2), Transpose()))
    return weight, WeightRule(f"{hf_name}.bias", biases, (Split(-1),))


def norm(hf_name: str, path: str) -> WeightRule:
    """Maps the scale of a norm."""
    return WeightRule(f"{hf_name}.weight", f"{path}/scale")


EMBED_AND_HEAD = (
    WeightRule("model.embed_tokens.weight", "decoder/embedding/weight"),
    WeightRule("lm_head.weight", "head/weight"),
    norm("model.norm", "decoder/norm"),
)
ATTENTION = (
    *linear(f"{LAYER}.self_attn.q_proj", f"{BLOCK}/attention/query"),
    *linear(f"{LAYER}.self_attn.k_proj", f"{BLOCK}/attention/key"),
    *linear(f"{LAYER}.self_attn.v_proj", f"{BLOCK}/attention/value"),
    *linear(f"{LAYER}.self_attn.o_proj", f"{BLOCK}/attention/output"),
)
QK_NORMS = (
    norm(f"{LAYER}.self_attn.q_norm", f"{BLOCK}/attention/query/norm"),
    norm(f"{LAYER}.self_attn.k_norm", f"{BLOCK}/attention/key/norm"),
)
FEED_FORWARD = (
    *linear(f"{LAYER}.mlp.gate_proj", f"{BLOCK}/feed_forward/gate"),
    *linear(f"{LAYER}.mlp.up_proj", f"{BLOCK}/feed_forward/up"),
    *linear(f"{LAYER}.mlp.down_proj", f"{BLOCK}/feed_forward/down"),
)
PRE_NORMS = (
    norm(f"{LAYER}.input_layernorm", f"{BLOCK}/attention_residual/norm"),
    norm(f"{LAYER}.post_attention_layernorm", f"{BLOCK}/feed_forward_residual/norm"),
)
# All tensors of Llama, which other families extend.
LLAMA = (*EMBED_AND_HEAD, *ATTENTION, *FEED_FORWARD, *PRE_NORMS)
_HF_EXPERT, _EXPERT = f"{LAYER}.mlp.experts.{{expert}}", f"{BLOCK}/feed_forward/{{expert}}"
EXPERTS = (
    *linear(f"{LAYER}.mlp.gate", f"{BLOCK}/feed_forward/router/projection"),
    *linear(f"{_HF_EXPERT}.gate_proj", f"{_EXPERT}/gate"),
    *linear(f"{_HF_EXPERT}.up_proj", f"{_EXPERT}/up"),
    *linear(f"{_HF_EXPERT}.down_proj", f"{_EXPERT}/down"),
)
