"""What the families share of Hugging Face's vocabulary: reading config.json, and common rules."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import jax

from dovetail.config import ConfigError, config_for
from dovetail.kernels.attention import Causal, SlidingWindow
from dovetail.layers import (
    LinearScaling,
    Llama3Scaling,
    NoScaling,
    Pattern,
    RotaryEmbedding,
    Stack,
    YarnScaling,
    exact_gelu,
    yarn_magnitude,
)
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


def rotary_from_hf(hub: HubConfig, base: float = 10_000.0) -> RotaryEmbedding.Config:
    """Reads the rotary embedding, written either way: `rope_parameters`, or theta and scaling.

    Args:
        hub: the config.json.
        base: the base where none is written.
    """
    return rotary_of(rotary_parameters(hub), hub, base)


def rotary_parameters(hub: HubConfig) -> Mapping[str, Any]:
    """Returns the keys of the rotary embedding; where both forms are written, the older holds."""
    found: Mapping[str, Any] = hub.get("rope_scaling") or hub.get("rope_parameters") or {}
    return found


def rotary_kind(given: Mapping[str, Any]) -> Any:
    """Returns what rotary parameters call their scaling; null is none of its names."""
    return given.get("rope_type", given.get("type", "default"))


def rotary_of(
    given: Mapping[str, Any], hub: HubConfig, base: float, key: str = "rope_theta"
) -> RotaryEmbedding.Config:
    """Reads one set of rotary parameters, for models that have one for each kind of layer.

    Args:
        given: the parameters.
        hub: the config.json.
        base: the base where neither they nor the config.json's `key` say it.
        key: the older place of the base.

    What part of a head is rotated is read where the family says what it means left out; others
    pass over it, as transformers does.
    """
    if "rope_theta" not in given:
        given = {**given, "rope_theta": hub.unless_left_out(key, base)}
    if hub.knows("partial_rotary_factor"):
        given = {"partial_rotary_factor": hub["partial_rotary_factor"], **given}
    else:
        given = {**given, "partial_rotary_factor": 1.0}
    return RotaryEmbedding.Config(
        base=_number(given, "rope_theta"),
        fraction=_number(given, "partial_rotary_factor"),
        scaling=_scaling_from_hf(given, hub),
    )


def rotary_to_hf(rotary: Any) -> dict[str, Any]:
    """Writes a rotary embedding in the form that every release of transformers reads."""
    if not isinstance(rotary, RotaryEmbedding.Config):
        raise ConfigError(f"{rotary.locate('')}: this format knows rotary positions only.")
    written = {"rope_theta": rotary.base, "rope_scaling": _scaling_to_hf(rotary.scaling)}
    return written | ({"partial_rotary_factor": rotary.fraction} if rotary.fraction != 1 else {})


def _scaling_from_hf(given: Mapping[str, Any], hub: HubConfig) -> Any:
    kind = rotary_kind(given)
    if kind == "default":
        return NoScaling.Config()
    if kind == "linear":
        return LinearScaling.Config(factor=_number(given, "factor"))
    if kind == "llama3":
        return Llama3Scaling.Config(
            factor=_number(given, "factor"),
            original_length=_original_length(given, hub),
            low_frequency_factor=_number(given, "low_freq_factor"),
            high_frequency_factor=_number(given, "high_freq_factor"),
        )
    if kind == "yarn":
        return YarnScaling.Config(
            factor=_number(given, "factor"),
            original_length=_original_length(given, hub),
            fast_turns=float(given.get("beta_fast") or 32.0),
            slow_turns=float(given.get("beta_slow") or 1.0),
            magnitude=_yarn_magnitude(given),
            truncate=bool(given.get("truncate", True)),
        )
    raise ConfigError(
        f"config.json: rope_type: the rotary scaling {kind!r} is not supported; known are default, "
        "linear, llama3 and yarn."
    )


def _original_length(given: Mapping[str, Any], hub: HubConfig) -> int:
    """Returns the length before stretching; left out, it is that of the whole model.

    It may stand beside the rotary parameters too, and holds there first.
    """
    key = "original_max_position_embeddings"
    if hub.get(key) is not None:
        return int(hub[key])
    return int(_number(given, key) if key in given else hub["max_position_embeddings"])


def _number(given: Mapping[str, Any], key: str) -> float:
    if given.get(key) is None:
        what = "is null" if key in given else "is left out"
        raise ConfigError(
            f"config.json: {key!r} of the rotary parameters {what}, and rope_type "
            f"{rotary_kind(given)!r} needs it. Write the number."
        )
    return float(given[key])


def _yarn_magnitude(given: Mapping[str, Any]) -> float | None:
    """Returns what YaRN multiplies with, where it is not the paper's rule."""
    if given.get("attention_factor") is not None:
        return float(given["attention_factor"])
    if given.get("mscale") and given.get("mscale_all_dim"):
        factor = float(given["factor"])
        above = yarn_magnitude(factor, float(given["mscale"]))
        return above / yarn_magnitude(factor, float(given["mscale_all_dim"]))
    return None


def _scaling_to_hf(scaling: Any) -> dict[str, Any] | None:
    match scaling:
        case NoScaling.Config():
            return None
        case LinearScaling.Config():
            return {"rope_type": "linear", "factor": scaling.factor}
        case Llama3Scaling.Config():
            return {
                "rope_type": "llama3",
                "factor": scaling.factor,
                "original_max_position_embeddings": scaling.original_length,
                "low_freq_factor": scaling.low_frequency_factor,
                "high_freq_factor": scaling.high_frequency_factor,
            }
        case YarnScaling.Config():
            written = {
                "rope_type": "yarn",
                "factor": scaling.factor,
                "original_max_position_embeddings": scaling.original_length,
                "beta_fast": scaling.fast_turns,
                "beta_slow": scaling.slow_turns,
                "truncate": scaling.truncate,
            }
            given = scaling.magnitude
            return written | ({} if given is None else {"attention_factor": given})
    raise ConfigError(f"{scaling.locate('')}: this scaling has no name in Hugging Face's format.")


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


def layers_of(stack: Any) -> list[Any]:
    """Returns the config of each layer of a stack, in order: the inverse of `arrange`."""
    if isinstance(stack, Stack.Config):
        return layers_of(stack.layer) * stack.num_layers
    if isinstance(stack, Pattern.Config):
        return [layer for group in stack.layers for layer in layers_of(group)]
    return [stack]


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
