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
        read: from its keys and the original length to ours.
        write: from ours to its keys.
    """

    rope_type: str
    part: type[Config[Any]]
    read: Callable[[Mapping[str, Any], Any], Config[Any]]
    write: Callable[[Any], dict[str, Any]]


_formats: dict[str, ScalingFormat] = {}


def register_scaling(known: ScalingFormat) -> None:
    """Makes a scaling known."""
    _formats[known.rope_type] = known


def rotary_from_hf(
    hub: HubConfig, kind: str = "", base: float = 10_000.0
) -> RotaryEmbedding.Config:
    """Reads the rotary embedding, written either way: `rope_parameters`, or theta and scaling.

    Args:
        hub: the config.json.
        kind: the kind of layer, where each has its own parameters.
        base: the base where none is written.
    """
    given = hub.get("rope_parameters") or {}
    given = given.get(kind) or {} if kind in given else given
    scaling = given if "rope_type" in given else hub.get("rope_scaling") or {}
    return RotaryEmbedding.Config(
        base=float(given.get("rope_theta", hub.get("rope_theta", base))),
        fraction=float(given.get("partial_rotary_factor", hub.get("partial_rotary_factor", 1.0))),
        scaling=_scaling_from_hf(scaling, hub),
    )


def rotary_to_hf(rotary: Any) -> dict[str, Any]:
    """Writes a rotary embedding in the form that every release of transformers reads."""
    if not isinstance(rotary, RotaryEmbedding.Config):
        raise ConfigError(f"{rotary.locate('')}: this format knows rotary positions only.")
    written = {"rope_theta": rotary.base, "rope_scaling": _scaling_to_hf(rotary.scaling)}
    return written | ({"partial_rotary_factor": rotary.fraction} if rotary.fraction != 1 else {})


def _scaling_from_hf(given: Mapping[str, Any], hub: HubConfig) -> Config[Any]:
    kind = given.get("rope_type", given.get("type", "default"))
    if kind == "default":
        return NoScaling.Config()
    if kind not in _formats:
        raise ConfigError(
            f"config.json: the rotary scaling {kind!r} is not supported; known are default, "
            f"{', '.join(sorted(_formats))}."
        )
    original = given.get("original_max_position_embeddings") or hub.get("max_position_embeddings")
    return _formats[kind].read(given, original)


def _scaling_to_hf(scaling: Any) -> dict[str, Any] | None:
    if isinstance(scaling, NoScaling.Config):
        return None
    for known in _formats.values():
        if isinstance(scaling, known.part):
            return {"rope_type": known.rope_type, **known.write(scaling)}
    raise ConfigError(f"{scaling.locate('')}: this scaling has no name in Hugging Face's format.")
