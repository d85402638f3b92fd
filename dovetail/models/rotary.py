"""Rotary positions in config.json: reading and writing them, and attention that uses them.

transformers has two forms: `rope_parameters`, and the older `rope_theta` with `rope_scaling`. Both
are read; the older one is written, since every release reads it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from dovetail.config import Config, ConfigError
from dovetail.layers import Attention, layers_of
from dovetail.layers.linear import linear as linear_layers
from dovetail.layers.positions import rope_scaling
from dovetail.layers.positions.rotary import NoScaling, RotaryEmbedding
from dovetail.models.causal_lm import CausalLM
from dovetail.models.compose import (
    attention,
    common_to_hf,
    feed_forward_to_hf,
    rms_norm,
)
from dovetail.models.hf import HFConfig

Parameters = Mapping[str, Any]

_ORIGINAL_LENGTH = "original_max_position_embeddings"


def rotary_attention(hf: HFConfig, base: float = 10_000.0, **changes: Any) -> Attention.Config:
    """Returns grouped-query attention with rotary positions; `base` is the default rope_theta."""
    return attention(hf, **{"positions": rotary_from_hf(hf, base=base), **changes})


def qk_norm_attention(hf: HFConfig, window: int | None = None) -> Any:
    """Returns rotary attention with an RMSNorm on each head of queries and keys."""
    bias = hf.get("attention_bias", False)
    plain = rotary_attention(hf, window=window, qkv_bias=bias, output_bias=bias)
    width = hf.get("head_dim") or hf["hidden_size"] // hf["num_attention_heads"]
    normed = linear_layers.NormedLinear.Config(linear=plain.query, norm=rms_norm(hf), group=width)
    return plain.set(query=normed, key=normed)


def llama_to_hf(config: CausalLM.Config) -> dict[str, Any]:
    """Writes the keys that Llama shares with most families."""
    block = layers_of(config.decoder.stack)[0]
    return {
        **common_to_hf(config),
        **feed_forward_to_hf(block.feed_forward),
        **rotary_to_hf(block.attention.positions),
        "rms_norm_eps": config.decoder.norm.epsilon,
    }


def rotary_from_hf(hf: HFConfig, base: float = 10_000.0) -> RotaryEmbedding.Config:
    """Reads the rotary embedding; `base` is the default of rope_theta."""
    return rotary_from_parameters(rotary_parameters(hf), hf, base)


def rotary_parameters(hf: HFConfig) -> Parameters:
    """Returns the rotary parameters. If both forms are present, the older one wins."""
    return hf.get("rope_scaling") or hf.get("rope_parameters") or {}


def rope_type(parameters: Parameters) -> Any:
    """Returns the name of the scaling in rotary parameters."""
    return parameters.get("rope_type", parameters.get("type", "default"))


def rotary_from_parameters(
    parameters: Parameters, hf: HFConfig, base: float, key: str = "rope_theta"
) -> RotaryEmbedding.Config:
    """Reads one set of rotary parameters; some models have one for each kind of layer.

    `partial_rotary_factor` is only read if the family has a default for it. Other families ignore
    it, as transformers does.

    Args:
        parameters: the rotary parameters.
        hf: the config.json.
        base: the default base.
        key: the key of the base in config.json, if the parameters lack it.
    """
    if "rope_theta" not in parameters:
        parameters = {**parameters, "rope_theta": hf.get_unless_null(key, base)}
    if hf.has_default("partial_rotary_factor"):
        parameters = {"partial_rotary_factor": hf["partial_rotary_factor"], **parameters}
    else:
        parameters = {**parameters, "partial_rotary_factor": 1.0}
    return RotaryEmbedding.Config(
        base=_number(parameters, "rope_theta"),
        fraction=_number(parameters, "partial_rotary_factor"),
        scaling=_scaling_from_hf(parameters, hf),
    )


def rotary_to_hf(rotary: Any) -> dict[str, Any]:
    """Writes a rotary embedding in the older form."""
    if not isinstance(rotary, RotaryEmbedding.Config):
        raise ConfigError(f"{rotary.locate('')}: this format only supports rotary positions.")
    written = {"rope_theta": rotary.base, "rope_scaling": _scaling_to_hf(rotary.scaling)}
    return written | ({"partial_rotary_factor": rotary.fraction} if rotary.fraction != 1 else {})


_formats: dict[str, type[ScalingFormat]] = {}


class ScalingFormat:
    """Reads and writes one rotary scaling. Subclasses are registered by their rope_type."""

    rope_type: ClassVar[str]
    config: ClassVar[type[Config[Any]]]
    keys: ClassVar[dict[str, str]]
    """The rotary parameter of each field of the config."""

    def __init_subclass__(cls) -> None:
        _formats[cls.rope_type] = cls

    @classmethod
    def read(cls, parameters: Parameters, hf: HFConfig) -> Config[Any]:
        """Converts rotary parameters to a config."""
        return cls.config(
            **{
                field: _original_length(parameters, hf)
                if key == _ORIGINAL_LENGTH
                else _number(parameters, key)
                for field, key in cls.keys.items()
            }
        )

    @classmethod
    def write(cls, scaling: Any) -> dict[str, Any]:
        """Converts a config to rotary parameters; None is left out."""
        values = {key: getattr(scaling, field) for field, key in cls.keys.items()}
        return {key: value for key, value in values.items() if value is not None}


class LinearFormat(ScalingFormat):
    """Linear scaling."""

    rope_type = "linear"
    config = rope_scaling.LinearScaling.Config
    keys: ClassVar[dict[str, str]] = {"factor": "factor"}


class Llama3Format(ScalingFormat):
    """The scaling of Llama 3.1."""

    rope_type = "llama3"
    config = rope_scaling.Llama3Scaling.Config
    keys: ClassVar[dict[str, str]] = {
        "factor": "factor",
        "original_length": _ORIGINAL_LENGTH,
        "low_frequency_factor": "low_freq_factor",
        "high_frequency_factor": "high_freq_factor",
    }


class YarnFormat(ScalingFormat):
    """YaRN."""

    rope_type = "yarn"
    config = rope_scaling.YarnScaling.Config
    keys: ClassVar[dict[str, str]] = {
        "factor": "factor",
        "original_length": _ORIGINAL_LENGTH,
        "fast_turns": "beta_fast",
        "slow_turns": "beta_slow",
        "truncate": "truncate",
        "magnitude": "attention_factor",
    }

    @classmethod
    def read(cls, parameters: Parameters, hf: HFConfig) -> Config[Any]:
        """Converts rotary parameters to a config; all but the factor have defaults."""
        return cls.config(
            factor=_number(parameters, "factor"),
            original_length=_original_length(parameters, hf),
            fast_turns=float(parameters.get("beta_fast") or 32.0),
            slow_turns=float(parameters.get("beta_slow") or 1.0),
            magnitude=cls._magnitude(parameters),
            truncate=bool(parameters.get("truncate", True)),
        )

    @staticmethod
    def _magnitude(parameters: Parameters) -> float | None:
        """Returns the factor of queries and keys; None means the paper's rule."""
        if parameters.get("attention_factor") is not None:
            return float(parameters["attention_factor"])
        if parameters.get("mscale") and parameters.get("mscale_all_dim"):
            mscale, all_dims = (
                rope_scaling.yarn_magnitude(float(parameters["factor"]), float(parameters[key]))
                for key in ("mscale", "mscale_all_dim")
            )
            return mscale / all_dims
        return None


def _scaling_from_hf(parameters: Parameters, hf: HFConfig) -> Config[Any]:
    kind = rope_type(parameters)
    if kind == "default":
        return NoScaling.Config()
    if kind not in _formats:
        raise ConfigError(
            f"config.json: rope_type: the rotary scaling {kind!r} is not supported; known are "
            f"default, {', '.join(sorted(_formats))}."
        )
    return _formats[kind].read(parameters, hf)


def _scaling_to_hf(scaling: Any) -> dict[str, Any] | None:
    if isinstance(scaling, NoScaling.Config):
        return None
    for known in _formats.values():
        if isinstance(scaling, known.config):
            return {"rope_type": known.rope_type, **known.write(scaling)}
    raise ConfigError(f"{scaling.locate('')}: this scaling has no name in Hugging Face's format.")


def _number(parameters: Parameters, key: str) -> float:
    """Returns a required number."""
    if parameters.get(key) is None:
        what = "is null" if key in parameters else "is left out"
        raise ConfigError(
            f"config.json: {key!r} of the rotary parameters {what}, and rope_type "
            f"{rope_type(parameters)!r} needs it. Write the number."
        )
    return float(parameters[key])


def _original_length(parameters: Parameters, hf: HFConfig) -> int:
    """Returns the context length before scaling; the default is the model's.

    The key may also be at the top level of config.json, which takes precedence.
    """
    if hf.get(_ORIGINAL_LENGTH) is not None:
        return int(hf[_ORIGINAL_LENGTH])
    given = _ORIGINAL_LENGTH in parameters
    return int(_number(parameters, _ORIGINAL_LENGTH) if given else hf["max_position_embeddings"])
