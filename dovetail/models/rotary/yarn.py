"""YaRN in config.json."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dovetail.layers.positions.yarn_scaling import YarnScaling, yarn_magnitude
from dovetail.models.hub import HubConfig
from dovetail.models.rotary.format import (
    ScalingFormat,
    original_length,
    register_scaling,
    rotary_number,
)


def _read(given: Mapping[str, Any], hub: HubConfig) -> YarnScaling.Config:
    return YarnScaling.Config(
        factor=rotary_number(given, "factor"),
        original_length=original_length(given, hub),
        fast_turns=float(given.get("beta_fast") or 32.0),
        slow_turns=float(given.get("beta_slow") or 1.0),
        magnitude=_magnitude(given),
        truncate=bool(given.get("truncate", True)),
    )


def _magnitude(given: Mapping[str, Any]) -> float | None:
    """Returns what YaRN multiplies with, where it is not the paper's rule."""
    if given.get("attention_factor") is not None:
        return float(given["attention_factor"])
    if given.get("mscale") and given.get("mscale_all_dim"):
        factor = float(given["factor"])
        above = yarn_magnitude(factor, float(given["mscale"]))
        return above / yarn_magnitude(factor, float(given["mscale_all_dim"]))
    return None


def _write(scaling: YarnScaling.Config) -> dict[str, Any]:
    written = {
        "factor": scaling.factor,
        "original_max_position_embeddings": scaling.original_length,
        "beta_fast": scaling.fast_turns,
        "beta_slow": scaling.slow_turns,
        "truncate": scaling.truncate,
    }
    given = scaling.magnitude
    return written | ({} if given is None else {"attention_factor": given})


register_scaling(ScalingFormat(rope_type="yarn", part=YarnScaling.Config, read=_read, write=_write))
