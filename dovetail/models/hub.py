"""What the families share of Hugging Face's vocabulary: reading config.json, and common rules."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import jax

from dovetail.config import ConfigError, config_for
from dovetail.kernels.attention import Causal, SlidingWindow
from dovetail.layers.feed_forward.feed_forward import exact_gelu
from dovetail.module import Split, Transpose, Weight

LOCAL, GLOBAL = "sliding_attention", "full_attention"
BLOCK = "decoder/stack/*"
LAYER = "model.layers.{layer}"

# What tiny forms have in common; grouped heads, so that queries and keys differ in width.
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


class HubConfig:
    """A config.json whose missing and unknown values are errors that name the key."""

    def __init__(self, values: Mapping[str, Any], **left_out: Any) -> None:
        """Wraps the values.

        Args:
            values: of the config.json. One that is null is no value.
            left_out: what the family means by keys that are not there, null or not.
        """
        self._stated, self._known = frozenset(values), frozenset(left_out)
        known = {**left_out, **values}
        self._values = {key: value for key, value in known.items() if value is not None}

    def __getitem__(self, key: str) -> Any:
        """Returns a value that must be there."""
        if key not in self._values:
            raise ConfigError(f"config.json: {key!r} is missing, and this family needs it.")
        return self._values[key]

    def knows(self, key: str) -> bool:
        """Says whether the family told what a key means that is left out."""
        return key in self._known

    def get(self, key: str, default: Any = None) -> Any:
        """Returns a value, or the default where it is null or left out."""
        return self._values.get(key, default)

    def unless_left_out(self, key: str, default: Any) -> Any:
        """Returns a value, or the default where it is left out; null is an error."""
        return self[key] if key in self._stated else default

    def either(self, *keys: str) -> Any:
        """Returns a value that goes by different names in different releases."""
        found = next((key for key in keys if key in self._values), None)
        if found is None:
            names = " or ".join(repr(key) for key in keys)
            raise ConfigError(f"config.json: {names} is missing, and this family needs it.")
        return self._values[found]

    def stated(self, key: str) -> Any:
        """Returns a value, or None where it is null; left out it is an error.

        Its meaning where it is left out differs among families and releases.
        """
        if key not in self._stated:
            raise ConfigError(
                f"config.json: {key!r} is left out; write it, or null where it does not apply."
            )
        return self.get(key)

    def layer_kinds(self, default: list[str]) -> list[str]:
        """Returns which layers are local and which global."""
        kinds = list(self.get("layer_types", default))
        unknown = [kind for kind in kinds if kind not in (LOCAL, GLOBAL)]
        if unknown or len(kinds) != self["num_hidden_layers"]:
            what = repr(unknown[0]) if unknown else f"{len(kinds)} entries"
            raise ConfigError(
                f"config.json: layer_types: expected {LOCAL!r} or {GLOBAL!r} for each of "
                f"{self['num_hidden_layers']} layers, got {what}."
            )
        return kinds

    def only(self, key: str, *allowed: Any) -> None:
        """Refuses all values but some; left out, the first is meant."""
        value = self.get(key, allowed[0])
        if value not in allowed:
            expected = " or ".join(repr(one) for one in allowed)
            raise ConfigError(
                f"config.json: {key} is {value!r}, which this family does not know here; expected "
                f"{expected}."
            )

    def activation(self, key: str = "hidden_act", default: str = "silu") -> Callable[..., Any]:
        """Returns the nonlinearity that a key names."""
        self.only(key, default, *_ACTIVATIONS)
        return _ACTIVATIONS[self.get(key, default)]


def activation_name(function: Callable[..., Any], *preferred: str) -> str:
    """Returns what config.json calls a nonlinearity; some have two names."""
    names = [name for name, known in _ACTIVATIONS.items() if known is function]
    if not names:
        raise ConfigError(f"{function} is no nonlinearity that Hugging Face's families name.")
    return next((name for name in preferred if name in names), names[0])


def mask_from_window(window: int | None) -> Any:
    """Returns the causal mask, with a sliding window where there is one."""
    return config_for(Causal) if window is None else config_for(SlidingWindow, window=window)


def window_of(mask: Any) -> int | None:
    """Returns the window of a causal mask, or None."""
    built = mask.build()
    if isinstance(built, SlidingWindow):
        return built.window
    if built == Causal():
        return None
    raise ConfigError(f"{mask.locate('')}: Hugging Face's formats cannot say the mask {built}.")


# Rules that many families share.


def linear(theirs: str, ours: str) -> tuple[Weight, ...]:
    """A torch Linear, with its bias if it has one."""
    weight = Weight(f"{theirs}.weight", f"{ours}/weight", (Transpose(),))
    return weight, Weight(f"{theirs}.bias", f"{ours}/bias")


def fused_linear(theirs: str, *ours: str) -> tuple[Weight, ...]:
    """A torch Linear that holds several of ours, one after another."""
    paths = tuple(f"{path}/weight" for path in ours)
    weight = Weight(f"{theirs}.weight", paths, (Split(-2), Transpose()))
    return weight, Weight(f"{theirs}.bias", tuple(f"{path}/bias" for path in ours), (Split(-1),))


def norm(theirs: str, ours: str) -> Weight:
    """A norm's scale."""
    return Weight(f"{theirs}.weight", f"{ours}/scale")


TABLES = (
    Weight("model.embed_tokens.weight", "decoder/embedding/weight"),
    Weight("lm_head.weight", "head/weight"),
    norm("model.norm", "decoder/norm"),
)
ATTENTION = (
    *linear(f"{LAYER}.self_attn.q_proj", f"{BLOCK}/attention/query"),
    *linear(f"{LAYER}.self_attn.k_proj", f"{BLOCK}/attention/key"),
    *linear(f"{LAYER}.self_attn.v_proj", f"{BLOCK}/attention/value"),
    *linear(f"{LAYER}.self_attn.o_proj", f"{BLOCK}/attention/output"),
)
HEAD_NORMS = (
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
_EXPERT, _OURS = f"{LAYER}.mlp.experts.{{expert}}", f"{BLOCK}/feed_forward/{{expert}}"
EXPERTS = (
    *linear(f"{LAYER}.mlp.gate", f"{BLOCK}/feed_forward/router/projection"),
    *linear(f"{_EXPERT}.gate_proj", f"{_OURS}/gate"),
    *linear(f"{_EXPERT}.up_proj", f"{_OURS}/up"),
    *linear(f"{_EXPERT}.down_proj", f"{_OURS}/down"),
)
