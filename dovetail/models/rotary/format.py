"""Reading and writing rotary positions, whichever scaling they have."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from dovetail.config import Config, ConfigError
from dovetail.layers.positions.rotary import RotaryEmbedding
from dovetail.layers.positions.scaling import NoScaling
from dovetail.models.hub import HubConfig


@dataclass(frozen=True)
class ScalingFormat:
    """How config.json writes one scaling.

    Attributes:
        rope_type: what it is called there.
        part: the config of ours.
        read: from its keys and the whole config.json to ours.
        write: from ours to its keys.
    """

    rope_type: str
    part: type[Config[Any]]
    read: Callable[[Mapping[str, Any], HubConfig], Config[Any]]
    write: Callable[[Any], dict[str, Any]]


_formats: dict[str, ScalingFormat] = {}


def register_scaling(known: ScalingFormat) -> None:
    """Makes a scaling known."""
    _formats[known.rope_type] = known


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
        base=rotary_number(given, "rope_theta"),
        fraction=rotary_number(given, "partial_rotary_factor"),
        scaling=_scaling_from_hf(given, hub),
    )


def rotary_to_hf(rotary: Any) -> dict[str, Any]:
    """Writes a rotary embedding in the form that every release of transformers reads."""
    if not isinstance(rotary, RotaryEmbedding.Config):
        raise ConfigError(f"{rotary.locate('')}: this format knows rotary positions only.")
    written = {"rope_theta": rotary.base, "rope_scaling": _scaling_to_hf(rotary.scaling)}
    return written | ({"partial_rotary_factor": rotary.fraction} if rotary.fraction != 1 else {})


def rotary_number(given: Mapping[str, Any], key: str) -> float:
    """Returns a number that must be among the rotary parameters."""
    if given.get(key) is None:
        what = "is null" if key in given else "is left out"
        raise ConfigError(
            f"config.json: {key!r} of the rotary parameters {what}, and rope_type "
            f"{rotary_kind(given)!r} needs it. Write the number."
        )
    return float(given[key])


def original_length(given: Mapping[str, Any], hub: HubConfig) -> int:
    """Returns the length before stretching; left out, it is that of the whole model.

    It may stand beside the rotary parameters too, and holds there first.
    """
    key = "original_max_position_embeddings"
    if hub.get(key) is not None:
        return int(hub[key])
    return int(rotary_number(given, key) if key in given else hub["max_position_embeddings"])


def _scaling_from_hf(given: Mapping[str, Any], hub: HubConfig) -> Config[Any]:
    kind = rotary_kind(given)
    if kind == "default":
        return NoScaling.Config()
    if kind not in _formats:
        raise ConfigError(
            f"config.json: rope_type: the rotary scaling {kind!r} is not supported; known are "
            f"default, {', '.join(sorted(_formats))}."
        )
    return _formats[kind].read(given, hub)


def _scaling_to_hf(scaling: Any) -> dict[str, Any] | None:
    if isinstance(scaling, NoScaling.Config):
        return None
    for known in _formats.values():
        if isinstance(scaling, known.part):
            return {"rope_type": known.rope_type, **known.write(scaling)}
    raise ConfigError(f"{scaling.locate('')}: this scaling has no name in Hugging Face's format.")
